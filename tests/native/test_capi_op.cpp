// Operators by name: the bits of their aclnn functions, and what CANN's definitions say of each type.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "aclnnop/aclnn_group_norm_swish.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "aclnnop/aclnn_nsa_compress.h"
#include "aclnnop/aclnn_nsa_compress_grad.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_scaled_masked_softmax.h"
#include "aclnnop/aclnn_scaled_masked_softmax_backward.h"
#include "capi_op.h"
#include "capi_runtime.h"

namespace {

constexpr aclDataType kDtypes[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};

struct OnProduct : Runtime {
  explicit OnProduct(const char* name) { REQUIRE(descendSetProduct(name) == 0); }
};

// Checks that both have the same bits, and are not empty.
void same(const Array& ours, const Array& theirs) {
  CHECK(ours.digest() == theirs.digest());
  CHECK(ours.finite());
}

void done(int status) {
  REQUIRE_MESSAGE(status == 0, sentence());
  REQUIRE_MESSAGE(aclrtSynchronizeStream(nullptr) == 0, sentence());
}

aclIntArray* numbers(std::vector<int64_t> values) { return aclCreateIntArray(values.data(), values.size()); }

}  // namespace

TEST_CASE("masked softmax by name") {
  const OnProduct runtime("atlas-a2-training");
  OpAttributes attr;
  attr.real("scale", 0.3f).flag("fixed_triu_mask", false).flag("_performance_prior", true);
  for (const aclDataType dtype : kDtypes) {
    CAPTURE(dtype);
    const std::vector<int64_t> shape{2, 3, 8, 40};
    Array x(shape, dtype), dy(shape, dtype), mask({2, 1, 8, 40}, ACL_BOOL);
    Array y(shape, dtype), dx(shape, dtype), y_expected(shape, dtype), dx_expected(shape, dtype);
    x.normal(1), dy.normal(2), mask.bits(3);
    const double scale = 0.3f;
    REQUIRE(run(aclnnScaledMaskedSoftmaxGetWorkspaceSize, aclnnScaledMaskedSoftmax, nullptr, x, mask, scale, false,
                y_expected) == 0);
    REQUIRE(run(aclnnScaledMaskedSoftmaxBackwardGetWorkspaceSize, aclnnScaledMaskedSoftmaxBackward, nullptr, dy,
                y_expected, mask, scale, false, dx_expected) == 0);
    for (const char* type : {"ScaledMaskedSoftmax", "ScaledMaskedSoftmaxV2"}) {
      std::memset(y.data(), 0xFF, y.bytes());
      done(call_by_name(type, {&x, &mask}, {&y}, attr));
      same(y, y_expected);
    }
    for (const char* type : {"ScaledMaskedSoftmaxGrad", "ScaledMaskedSoftmaxGradV2"}) {
      std::memset(dx.data(), 0xFF, dx.bytes());
      done(call_by_name(type, {&dy, &y, &mask}, {&dx}, attr));
      same(dx, dx_expected);
    }
    // Without attributes: their defaults.
    REQUIRE(run(aclnnScaledMaskedSoftmaxGetWorkspaceSize, aclnnScaledMaskedSoftmax, nullptr, x, mask, 1.0, false,
                y_expected) == 0);
    done(call_by_name("ScaledMaskedSoftmax", {&x, &mask}, {&y}));
    same(y, y_expected);
    // A mask that is left out, in both ways; the contract has none on an Atlas product.
    CHECK(call_by_name("ScaledMaskedSoftmax", {&x, nullptr}, {&y}) == ACLNN_ERR_PARAM_NULLPTR);
    REQUIRE(descendSetProduct("host") == 0);
    REQUIRE(run(aclnnScaledMaskedSoftmaxGetWorkspaceSize, aclnnScaledMaskedSoftmax, nullptr, x, nullptr, 1.0, false,
                y_expected) == 0);
    for (const std::vector<Array*>& inputs : {std::vector<Array*>{&x, nullptr}, std::vector<Array*>{&x}}) {
      std::memset(y.data(), 0xFF, y.bytes());
      done(call_by_name("ScaledMaskedSoftmax", inputs, {&y}));
      same(y, y_expected);
    }
    REQUIRE(descendSetProduct("atlas-a2-training") == 0);
  }
}

TEST_CASE("RMS norm by name") {
  const OnProduct runtime("ascend-950");
  OpAttributes attr;
  attr.real("epsilon", 0.25f);
  for (const aclDataType dtype : kDtypes) {
    for (const aclDataType gamma_dtype : {dtype, ACL_FLOAT}) {
      const std::vector<int64_t> shape{3, 5, 48}, rows{3, 5, 1};
      Array x(shape, dtype), dy(shape, dtype), gamma({48}, gamma_dtype);
      Array y(shape, dtype), rstd(rows, ACL_FLOAT), dx(shape, dtype), dgamma({48}, ACL_FLOAT);
      Array y_expected(shape, dtype), rstd_expected(rows, ACL_FLOAT), dx_expected(shape, dtype),
          dgamma_expected({48}, ACL_FLOAT);
      x.normal(1), dy.normal(2), gamma.normal(3);
      REQUIRE(run(aclnnRmsNormGetWorkspaceSize, aclnnRmsNorm, nullptr, x, gamma, 0.25, y_expected, rstd_expected) == 0);
      done(call_by_name("RmsNorm", {&x, &gamma}, {&y, &rstd}, attr));
      same(y, y_expected), same(rstd, rstd_expected);
      REQUIRE(run(aclnnRmsNormGradGetWorkspaceSize, aclnnRmsNormGrad, nullptr, dy, x, rstd, gamma, dx_expected,
                  dgamma_expected) == 0);
      done(call_by_name("RmsNormGrad", {&dy, &x, &rstd, &gamma}, {&dx, &dgamma}));
      same(dx, dx_expected), same(dgamma, dgamma_expected);
      REQUIRE(run(aclnnRmsNormGetWorkspaceSize, aclnnRmsNorm, nullptr, x, gamma, double{1e-6f}, y_expected,
                  rstd_expected) == 0);
      done(call_by_name("RmsNorm", {&x, &gamma}, {&y, &rstd}));
      same(y, y_expected), same(rstd, rstd_expected);
    }
  }
}

TEST_CASE("group norm + swish by name") {
  const OnProduct runtime("atlas-a2-training");
  char format[] = "NCHW";
  for (const aclDataType dtype : kDtypes) {
    const std::vector<int64_t> image{2, 6, 3, 5}, channel{6}, groups{2, 3};
    Array x(image, dtype), dy(image, dtype), gamma(channel, dtype), beta(channel, dtype);
    Array y(image, dtype), mean(groups, dtype), rstd(groups, dtype);
    Array y_expected(image, dtype), mean_expected(groups, dtype), rstd_expected(groups, dtype);
    x.normal(1), dy.normal(2), gamma.normal(3), beta.normal(4);
    OpAttributes forward;
    forward.integer("num_groups", 3).real("eps", 0.5f).flag("activate_swish", false);
    REQUIRE(run(aclnnGroupNormSwishGetWorkspaceSize, aclnnGroupNormSwish, nullptr, x, gamma, beta, 3, format, 0.5,
                false, 1.0, y_expected, mean_expected, rstd_expected) == 0);
    done(call_by_name("GroupNormSwish", {&x, &gamma, &beta}, {&y, &mean, &rstd}, forward));
    same(y, y_expected), same(mean, mean_expected), same(rstd, rstd_expected);

    Array dx(image, dtype), dgamma(channel, dtype), dbeta(channel, dtype);
    Array dx_expected(image, dtype), dgamma_expected(channel, dtype), dbeta_expected(channel, dtype);
    OpAttributes backward;
    backward.integer("num_groups", 3).text("data_format", "NCHW").real("swish_scale", 1.5f);
    REQUIRE(run(aclnnGroupNormSwishGradGetWorkspaceSize, aclnnGroupNormSwishGrad, nullptr, dy, mean, rstd, x, gamma,
                beta, 3, format, 1.5, true, true, dx_expected, dgamma_expected, dbeta_expected) == 0);
    done(call_by_name("GroupNormSwishGrad", {&dy, &mean, &rstd, &x, &gamma, &beta}, {&dx, &dgamma, &dbeta}, backward));
    same(dx, dx_expected), same(dgamma, dgamma_expected), same(dbeta, dbeta_expected);
    std::memset(dbeta.data(), 0xFF, dbeta.bytes());
    backward.flag("dbeta_is_require", false);
    done(call_by_name("GroupNormSwishGrad", {&dy, &mean, &rstd, &x, &gamma, &beta}, {&dx, &dgamma, &dbeta}, backward));
    same(dgamma, dgamma_expected);
    CHECK(std::isnan(dbeta.at(0)));
    CHECK(call_by_name("GroupNormSwish", {&x, &gamma, &beta}, {&y, &mean, &rstd}) == ACL_ERROR_OP_ATTR_NOT_MATCH);
    CHECK(sentence() == "aclopCompileAndExecute: GroupNormSwish: num_groups must be given; it is an integer.");
  }
}

TEST_CASE("layer norm by name: where the normalised dimensions begin, and how many") {
  const OnProduct runtime("atlas-a2-training");
  aclIntArray* const normalized = numbers({4, 6});
  for (const aclDataType dtype : kDtypes) {
    for (const aclDataType gamma_dtype : {dtype, ACL_FLOAT}) {
      const std::vector<int64_t> shape{5, 4, 6}, inner{4, 6}, rows{5, 1, 1};
      Array x(shape, dtype), gamma(inner, gamma_dtype), beta(inner, gamma_dtype);
      Array y(shape, dtype), mean(rows, gamma_dtype), rstd(rows, gamma_dtype);
      Array y_expected(shape, dtype), mean_expected(rows, gamma_dtype), rstd_expected(rows, gamma_dtype);
      x.normal(1), gamma.normal(2), beta.normal(3);
      const auto expect = [&](double epsilon, aclTensor* weight, aclTensor* bias) {
        REQUIRE(run(aclnnLayerNormGetWorkspaceSize, aclnnLayerNorm, nullptr, x, normalized, weight, bias, epsilon,
                    y_expected, mean_expected, rstd_expected) == 0);
      };
      expect(0.25, gamma, beta);
      for (const int64_t axis : {1, -2}) {
        OpAttributes attr;
        attr.integer("begin_norm_axis", axis).integer("begin_params_axis", axis).real("epsilon", 0.25f);
        done(call_by_name("LayerNormV3", {&x, &gamma, &beta}, {&y, &mean, &rstd}, attr));
        same(y, y_expected), same(mean, mean_expected), same(rstd, rstd_expected);
        // The first form of the type has the variance in the place of rstd.
        std::memset(y.data(), 0xFF, y.bytes());
        Array variance(rows, gamma_dtype), once(rows, gamma_dtype);
        done(call_by_name("LayerNorm", {&x, &gamma, &beta}, {&y, &mean, &variance}, attr));
        same(y, y_expected), same(mean, mean_expected);
        for (int64_t row = 0; row < 5; ++row) {
          double sum = 0, squares = 0;
          for (int64_t i = 0; i < 24; ++i) sum += x.at(row * 24 + i);
          for (int64_t i = 0; i < 24; ++i) squares += std::pow(x.at(row * 24 + i) - sum / 24, 2);
          const double unit = gamma_dtype == ACL_FLOAT ? 0x1p-24 : gamma_dtype == ACL_FLOAT16 ? 0x1p-11 : 0x1p-8;
          CHECK(variance.at(row) == doctest::Approx(squares / 24).epsilon(1.01 * unit));
        }
        // In place of its input.
        Array moved(shape, dtype);
        std::memcpy(moved.data(), x.data(), x.bytes());
        done(call_by_name("LayerNorm", {&moved, &gamma, &beta}, {&moved, &mean, &once}, attr));
        same(moved, y_expected), same(once, variance);
      }

      Array lengths({2}, ACL_INT64);
      const int64_t inner_numbers[] = {4, 6};
      std::memcpy(lengths.data(), inner_numbers, sizeof(inner_numbers));
      OpAttributes attr;
      attr.real("epsilon", 0.25f);
      const auto v4 = [&](const std::vector<Array*>& rest) {
        OpTensors in({&x}), out({&y, &mean, &rstd});
        in.add(described(&lengths));
        REQUIRE(aclSetTensorPlaceMent(in.descs[1], ACL_MEMTYPE_HOST) == 0);
        for (Array* array : rest) in.add(described(array));
        return execute("LayerNormV4", in, out, attr);
      };
      done(v4({&gamma, &beta}));
      same(y, y_expected), same(mean, mean_expected), same(rstd, rstd_expected);
      expect(0.25, nullptr, beta);
      done(v4({nullptr, &beta}));
      same(y, y_expected);
      expect(0.25, nullptr, nullptr);
      done(v4({}));
      same(y, y_expected);
    }
  }
  Array x({5, 4, 6}, ACL_FLOAT), gamma({4, 6}, ACL_FLOAT), y({5, 4, 6}, ACL_FLOAT), row({5, 1, 1}, ACL_FLOAT),
      other({5, 1, 1}, ACL_FLOAT);
  for (const int64_t axis : {3, -4}) {
    OpAttributes attr;
    attr.integer("begin_norm_axis", axis);
    CHECK(call_by_name("LayerNormV3", {&x, &gamma, &gamma}, {&y, &row, &other}, attr) == ACL_ERROR_OP_ATTR_NOT_MATCH);
    CHECK(sentence() == "aclopCompileAndExecute: LayerNormV3: begin_norm_axis is " + std::to_string(axis) +
                            ", but x has shape [5, 4, 6].");
  }
  OpAttributes attr;
  attr.integer("begin_norm_axis", 1);
  CHECK(call_by_name("LayerNorm", {&x, &gamma, &gamma}, {&y, &row, &other}, attr) == ACL_ERROR_OP_ATTR_NOT_MATCH);
  CHECK(sentence().find("begin_params_axis is 0, but must be begin_norm_axis, 1") != std::string::npos);
  CHECK(call_by_name("LayerNormV3", {&x, &gamma, nullptr}, {&y, &row, &other}) == ACLNN_ERR_PARAM_NULLPTR);
  CHECK(sentence() == "aclopCompileAndExecute: LayerNormV3: beta is null, but must be given.");
}

TEST_CASE("the gradients of layer norm by name: from rstd, and from the variance") {
  const OnProduct runtime("atlas-a2-training");
  aclIntArray* const normalized = numbers({4, 6});
  const bool all[] = {true, true, true}, some[] = {true, false, true};
  for (const char* product : {"atlas-a2-training", "ascend-950"}) {
    REQUIRE(descendSetProduct(product) == 0);
    for (const aclDataType dtype : kDtypes) {
      CAPTURE(product);
      CAPTURE(dtype);
      const std::vector<int64_t> shape{5, 4, 6}, inner{4, 6}, rows{5, 1, 1};
      Array x(shape, dtype), dy(shape, dtype), gamma(inner, dtype), mean(rows, ACL_FLOAT), rstd(rows, ACL_FLOAT),
          variance(rows, ACL_FLOAT);
      Array dx(shape, dtype), dgamma(inner, dtype), dbeta(inner, dtype);
      Array dx_expected(shape, dtype), dgamma_expected(inner, dtype), dbeta_expected(inner, dtype);
      x.normal(1), dy.normal(2), gamma.normal(3), mean.normal(4), variance.positive(5);
      const double epsilon = std::string(product) == "ascend-950" && dtype != ACL_FLOAT ? 1e-5f : 1e-12f;
      for (int64_t i = 0; i < 5; ++i) {
        const auto deviation = static_cast<float>(1 / std::sqrt(variance.at(i) + epsilon));
        std::memcpy(rstd.data() + 4 * i, &deviation, 4);
      }
      const auto expect = [&](const bool* mask) {
        REQUIRE(run(aclnnLayerNormBackwardGetWorkspaceSize, aclnnLayerNormBackward, nullptr, dy, x, normalized, mean,
                    rstd, gamma, nullptr, aclCreateBoolArray(mask, 3), dx_expected, dgamma_expected,
                    dbeta_expected) == 0);
      };
      const auto clear = [&] {
        for (Array* array : {&dx, &dgamma, &dbeta}) std::memset(array->data(), 0xFF, array->bytes());
      };
      expect(all);
      done(call_by_name("LayerNormGradV3", {&dy, &x, &rstd, &mean, &gamma}, {&dx, &dgamma, &dbeta}));
      same(dx, dx_expected), same(dgamma, dgamma_expected), same(dbeta, dbeta_expected);
      clear();
      done(call_by_name("LayerNormGrad", {&dy, &x, &variance, &mean, &gamma}, {&dx, &dgamma, &dbeta}));
      same(dx, dx_expected), same(dgamma, dgamma_expected), same(dbeta, dbeta_expected);

      OpAttributes attr;
      attr.flags("output_mask", {1, 0, 1});
      const int status = call_by_name("LayerNormGradV3", {&dy, &x, &rstd, &mean, &gamma}, {&dx, nullptr, &dbeta}, attr);
      if (std::string(product) != "ascend-950") {
        CHECK(status == ACL_ERROR_OP_ATTR_NOT_MATCH);
        CHECK(sentence().find("output_mask is [1, 0, 1], but must be [1, 1, 1] on " + std::string(product)) !=
              std::string::npos);
        continue;
      }
      expect(some);
      clear();
      done(call_by_name("LayerNormGradV3", {&dy, &x, &rstd, &mean, &gamma}, {&dx, nullptr, &dbeta}, attr));
      same(dx, dx_expected), same(dbeta, dbeta_expected);
    }
  }
  // What the contract refuses, it refuses under the type's own names.
  Array x({5, 24}, ACL_FLOAT), gamma({24}, ACL_FLOAT), row({5, 1}, ACL_FLOAT), wrong({5, 1}, ACL_INT32),
      four({4, 1}, ACL_FLOAT), dx({5, 24}, ACL_FLOAT), dgamma({24}, ACL_FLOAT), dbeta({24}, ACL_FLOAT);
  CHECK(call_by_name("LayerNormGrad", {&x, &x, &wrong, &row, &gamma}, {&dx, &dgamma, &dbeta}) ==
        ACLNN_ERR_PARAM_INVALID);
  CHECK_MESSAGE(sentence().find("aclopCompileAndExecute: LayerNormGrad: variance has dtype INT32") == 0, sentence());
  CHECK(call_by_name("LayerNormGrad", {&x, &x, &four, &row, &gamma}, {&dx, &dgamma, &dbeta}) ==
        ACLNN_ERR_PARAM_INVALID);
  CHECK_MESSAGE(sentence().find("variance has shape [4, 1]") != std::string::npos, sentence());
}

TEST_CASE("NSA compression by name: lengths that are constant, or lie in host memory") {
  const OnProduct runtime("atlas-a2-training");
  char layout[] = "TND";
  const int64_t values[] = {48, 112};
  aclIntArray* const ends = numbers({48, 112});
  for (const aclDataType dtype : {ACL_FLOAT16, ACL_BF16}) {
    const std::vector<int64_t> tokens{112, 2, 32}, weights{32, 2}, windows{5, 2, 32};
    Array input(tokens, dtype), weight(weights, dtype), grad(windows, dtype), lengths({2}, ACL_INT64);
    Array output(windows, dtype), dx(tokens, dtype), dw(weights, dtype);
    Array output_expected(windows, dtype), dx_expected(tokens, dtype), dw_expected(weights, dtype);
    input.normal(1), weight.normal(2), grad.normal(3);
    REQUIRE(run(aclnnNsaCompressGetWorkspaceSize, aclnnNsaCompress, nullptr, input, weight, ends, layout, 32, 16, 0,
                output_expected) == 0);
    REQUIRE(run(aclnnNsaCompressGradGetWorkspaceSize, aclnnNsaCompressGrad, nullptr, grad, input, weight, ends, 32, 16,
                0, layout, dx_expected, dw_expected) == 0);
    OpAttributes attr;
    attr.integer("compressBlockSize", 32).integer("compressStride", 16).integer("actSeqLenType", 0);
    for (const bool constant : {true, false}) {
      for (Array* array : {&output, &dx, &dw}) std::memset(array->data(), 0xFF, array->bytes());
      std::memcpy(lengths.data(), values, sizeof(values));
      OpTensors in({&input, &weight, &lengths}), out({&output});
      OpTensors grad_in({&grad, &input, &weight, &lengths}), grad_out({&dx, &dw});
      for (aclTensorDesc* desc : {in.descs[2], grad_in.descs[3]}) {
        if (constant) {
          REQUIRE(aclSetTensorConst(desc, lengths.data(), lengths.bytes()) == 0);
        } else {
          REQUIRE(aclSetTensorPlaceMent(desc, ACL_MEMTYPE_HOST_COMPILE_INDEPENDENT) == 0);
        }
      }
      REQUIRE_MESSAGE(execute("NsaCompress", in, out, attr) == 0, sentence());
      REQUIRE_MESSAGE(execute("NsaCompressGrad", grad_in, grad_out, attr) == 0, sentence());
      std::memset(lengths.data(), 0, lengths.bytes());
      done(0);
      same(output, output_expected), same(dx, dx_expected), same(dw, dw_expected);
    }
    OpTensors in({&input, &weight, &lengths}), out({&output});
    CHECK(execute("NsaCompress", in, out, attr) == ACL_ERROR_OP_INPUT_NOT_MATCH);
    CHECK(sentence().find("actSeqLenOptional must be known") != std::string::npos);
    REQUIRE(aclSetTensorConst(in.descs[2], lengths.data(), 15) == 0);
    CHECK(execute("NsaCompress", in, out, attr) == ACL_ERROR_OP_INPUT_NOT_MATCH);
    CHECK_MESSAGE(sentence().find("15 bytes") != std::string::npos, sentence());
    Array narrow({2}, ACL_INT32);
    OpTensors other({&input, &weight, &narrow});
    CHECK(execute("NsaCompress", other, out, attr) == ACL_ERROR_OP_INPUT_NOT_MATCH);
    CHECK(sentence().find("has dtype INT32, but must be INT64") != std::string::npos);
    CHECK(call_by_name("NsaCompress", {&input, &weight, nullptr}, {&output}, attr) == ACLNN_ERR_PARAM_NULLPTR);
    attr.text("layoutOptional", "BSH");
    CHECK(call_by_name("NsaCompressGrad", {&grad, &input, &weight, nullptr}, {&dx, &dw}, attr) ==
          ACLNN_ERR_PARAM_INVALID);
    CHECK(sentence().find("layoutOptional is 'BSH', but must be 'TND'") != std::string::npos);
    REQUIRE(descendSetProduct("ascend-950") == 0);
    CHECK(call_by_name("NsaCompressGrad", {&grad, &input, &weight, nullptr}, {&dx, &dw}, attr) ==
          ACLNN_ERR_INNER_FIND_KERNEL_ERROR);
    REQUIRE(descendSetProduct("atlas-a2-training") == 0);
  }
}

TEST_CASE("outputs whose shape the program does not know") {
  const OnProduct runtime("atlas-a2-training");
  Array input({112, 2, 32}, ACL_FLOAT16), weight({32, 2}, ACL_FLOAT16), output({5, 2, 32}, ACL_FLOAT16),
      expected({5, 2, 32}, ACL_FLOAT16), lengths({2}, ACL_INT64);
  input.normal(1), weight.normal(2);
  const int64_t values[] = {48, 112};
  std::memcpy(lengths.data(), values, sizeof(values));
  OpAttributes attr;
  attr.integer("compressBlockSize", 32).integer("compressStride", 16).integer("actSeqLenType", 0);
  OpTensors in({&input, &weight, &lengths}), known({&expected}), out({});
  REQUIRE(aclSetTensorConst(in.descs[2], lengths.data(), lengths.bytes()) == 0);
  REQUIRE(execute_v2("NsaCompress", in, known, attr) == 0);
  const int64_t unknown[] = {-1, -1, 32};
  out.add({aclCreateTensorDesc(ACL_FLOAT16, 3, unknown, ACL_FORMAT_ND),
           aclCreateDataBuffer(output.data(), output.bytes())});
  CHECK(execute("NsaCompress", in, out, attr) != 0);  // the first form does not look
  REQUIRE_MESSAGE(execute_v2("NsaCompress", in, out, attr) == 0, sentence());
  for (size_t i = 0; i < 3; ++i) {
    int64_t dim = 0;
    CHECK(aclGetTensorDescDimV2(out.descs[0], i, &dim) == 0);
    CHECK(dim == output.shape()[i]);
  }
  done(0);
  same(output, expected);
  // The buffer must hold what follows.
  OpTensors small({});
  small.add({aclCreateTensorDesc(ACL_FLOAT16, 3, unknown, ACL_FORMAT_ND),
             aclCreateDataBuffer(output.data(), output.bytes() - 2)});
  CHECK(execute_v2("NsaCompress", in, small, attr) == ACLNN_ERR_PARAM_INVALID);
  CHECK(sentence().find("aclopCompileAndExecuteV2: NsaCompress: output ") == 0);
  int64_t dim = 0;
  CHECK(aclGetTensorDescDimV2(small.descs[0], 0, &dim) == 0);
  CHECK(dim == -1);
}

TEST_CASE("a call by name runs in its stream's order, and needs nothing of what described it") {
  const OnProduct runtime("atlas-a2-training");
  aclrtStream stream = nullptr;
  REQUIRE(aclrtCreateStream(&stream) == 0);
  Array x({64, 256}, ACL_FLOAT), gamma({256}, ACL_FLOAT), y({64, 256}, ACL_FLOAT), rstd({64, 1}, ACL_FLOAT),
      expected({64, 256}, ACL_FLOAT);
  x.normal(1), gamma.normal(2);
  REQUIRE(run(aclnnRmsNormGetWorkspaceSize, aclnnRmsNorm, stream, x, gamma, double{1e-6f}, expected, rstd) == 0);
  std::vector<char> busy(32 << 20);
  for (int i = 0; i < 20; ++i) {
    Array late({64, 256}, ACL_FLOAT);
    std::vector<float> host(256);
    std::memcpy(host.data(), gamma.data(), gamma.bytes());
    {
      OpTensors in({&late}), out({&y, &rstd});
      const int64_t columns = 256;
      in.add({aclCreateTensorDesc(ACL_FLOAT, 1, &columns, ACL_FORMAT_ND), aclCreateDataBuffer(host.data(), 1024)});
      REQUIRE(aclSetTensorPlaceMent(in.descs[1], ACL_MEMTYPE_HOST) == 0);
      REQUIRE(aclrtMemsetAsync(busy.data(), busy.size(), 0, busy.size(), stream) == 0);
      REQUIRE(aclrtMemcpyAsync(late.data(), late.bytes(), x.data(), x.bytes(), ACL_MEMCPY_DEVICE_TO_DEVICE, stream) ==
              0);
      REQUIRE_MESSAGE(execute("RmsNorm", in, out, nullptr, stream) == 0, sentence());
    }
    std::fill(host.begin(), host.end(), 0.0f);  // it has been read
    REQUIRE(aclrtSynchronizeStream(stream) == 0);
    same(y, expected);
    std::memset(y.data(), 0xFF, y.bytes());
  }
  CHECK(aclrtDestroyStream(stream) == 0);
}
