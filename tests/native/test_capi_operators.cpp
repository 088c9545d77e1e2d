// All operators through both phases, and every rule of the second phase for each of them.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "aclnnop/aclnn_apply_adam_w.h"
#include "aclnnop/aclnn_apply_adam_w_v2.h"
#include "aclnnop/aclnn_gelu.h"
#include "aclnnop/aclnn_gelu_backward.h"
#include "aclnnop/aclnn_inplace_add_rms_norm.h"
#include "every_operator.h"

namespace {

bool untouched(const Operator& op) {
  for (const auto& output : op.outputs) {
    for (size_t i = 0; i < output->bytes(); ++i) {
      if (output->data()[i] != 0xFF) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("every operator runs once, and only as itself") {
  const Runtime runtime;
  const std::vector<Operator> all = operators();
  for (const Operator& op : all) {
    CAPTURE(op.name);
    uint64_t size = 99;
    aclOpExecutor* executor = nullptr;
    REFUSED(ACLNN_ERR_PARAM_NULLPTR, op.name, op.first(nullptr, &executor));
    REFUSED(ACLNN_ERR_PARAM_NULLPTR, op.name, op.first(&size, nullptr));
    CHECK(size == 99);
    CHECK(executor == nullptr);
    REQUIRE_MESSAGE(op.first(&size, &executor) == 0, sentence());
    std::vector<char> workspace(size + 1);
    char* const place = workspace.data();
    int local = 0;
    REFUSED(ACLNN_ERR_PARAM_NULLPTR, op.name, op.second(place, size, nullptr, nullptr));
    REFUSED(ACLNN_ERR_PARAM_INVALID, op.name,
            op.second(place, size, reinterpret_cast<aclOpExecutor*>(&local), nullptr));
    REFUSED(ACLNN_ERR_RUNTIME_ERROR, op.name, op.second(place, size, executor, &local));
    if (size > 0) {
      REFUSED(ACLNN_ERR_PARAM_NULLPTR, op.name, op.second(nullptr, size, executor, nullptr));
      REFUSED(ACLNN_ERR_PARAM_INVALID, op.name, op.second(place, size - 1, executor, nullptr));
    }
    for (const Operator& other : all) {
      if (other.name == op.name) continue;
      REFUSED(ACLNN_ERR_PARAM_INVALID, other.name, other.second(place, size, executor, nullptr));
      CHECK(sentence().find(op.name) != std::string::npos);
    }
    CHECK(untouched(op));
    CHECK_MESSAGE(op.second(size > 0 ? place : nullptr, size, executor, nullptr) == 0, sentence());
    CHECK(aclrtSynchronizeStream(nullptr) == 0);
    for (const auto& output : op.outputs) CHECK(output->finite());
    REFUSED(ACLNN_ERR_PARAM_INVALID, op.name, op.second(place, size, executor, nullptr));
    REFUSED(ACLNN_ERR_PARAM_INVALID, "aclDestroyAclOpExecutor", aclDestroyAclOpExecutor(executor));
  }
}

TEST_CASE("every operator's executor runs again and again, on other memory too") {
  const Runtime runtime;
  const std::vector<Operator> all = operators(), others = operators();
  for (size_t k = 0; k < all.size(); ++k) {
    const Operator &op = all[k], &other = others[k];
    CAPTURE(op.name);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    REQUIRE(op.first(&size, &executor) == 0);
    REQUIRE(aclSetAclOpExecutorRepeatable(executor) == 0);
    std::vector<char> workspace(size + 1);
    const auto digest = [&](const Operator& of) {
      REQUIRE_MESSAGE(op.second(workspace.data(), size, executor, nullptr) == 0, sentence());
      REQUIRE(aclrtSynchronizeStream(nullptr) == 0);
      uint64_t result = 14695981039346656037u;
      for (const auto& output : of.outputs) {
        CHECK(output->finite());
        result = output->digest(result);
        std::memset(output->data(), 0xFF, output->bytes());
      }
      return result;
    };
    const uint64_t expected = digest(op);
    CHECK(digest(op) == expected);
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      CHECK(aclSetOutputTensorAddr(executor, i, *op.outputs[i], other.outputs[i]->data()) == 0);
    }
    CHECK(digest(other) == expected);
    CHECK(untouched(op));
    for (auto* set : {aclSetInputTensorAddr, aclSetOutputTensorAddr, aclSetTensorAddr, AclSetInputTensorAddr,
                      AclSetOutputTensorAddr, AclSetTensorAddr}) {
      CHECK(set(executor, 99, *op.outputs[0], op.outputs[0]->data()) == ACLNN_ERR_PARAM_INVALID);
      CHECK(sentence().find("99") != std::string::npos);
    }
    CHECK(aclDestroyAclOpExecutor(executor) == 0);
    REFUSED(ACLNN_ERR_PARAM_INVALID, op.name, op.second(workspace.data(), size, executor, nullptr));
  }
}

TEST_CASE("indices of tensors count those that are null") {
  const Runtime runtime;
  const int64_t columns = 32;
  const bool some[] = {true, false, false};
  aclIntArray* const normalized = aclCreateIntArray(&columns, 1);
  aclBoolArray* const mask = aclCreateBoolArray(some, 3);
  Array dy({4, 32}, ACL_FLOAT), x({4, 32}, ACL_FLOAT), mean({4, 1}, ACL_FLOAT), rstd({4, 1}, ACL_FLOAT);
  Array dx({4, 32}, ACL_FLOAT), bias({32}, ACL_FLOAT), moved({4, 32}, ACL_FLOAT);
  dy.normal(1), x.normal(2), mean.normal(3), rstd.positive(4), bias.normal(5);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  REQUIRE(aclnnLayerNormBackwardGetWorkspaceSize(dy, x, normalized, mean, rstd, nullptr, bias, mask, dx, nullptr,
                                                 nullptr, &size, &executor) == 0);
  REQUIRE(aclSetAclOpExecutorRepeatable(executor) == 0);
  std::vector<char> workspace(size + 1);
  // gradOut, input, mean, rstd, weight (null), bias | gradInput, gradWeight (null), gradBias (null)
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclSetInputTensorAddr", aclSetInputTensorAddr(executor, 4, bias, bias.data()));
  CHECK(sentence().find("null") != std::string::npos);
  CHECK(aclSetInputTensorAddr(executor, 5, bias, bias.data()) == 0);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclSetInputTensorAddr", aclSetInputTensorAddr(executor, 6, bias, bias.data()));
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclSetOutputTensorAddr", aclSetOutputTensorAddr(executor, 1, dx, dx.data()));
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclSetOutputTensorAddr", aclSetOutputTensorAddr(executor, 3, dx, dx.data()));
  CHECK(aclSetTensorAddr(executor, 6, dx, moved.data()) == 0);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclSetTensorAddr", aclSetTensorAddr(executor, 5, dx, moved.data()));  // a bias
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, "aclSetTensorAddr", aclSetTensorAddr(executor, 6, nullptr, moved.data()));
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, "aclSetTensorAddr", aclSetTensorAddr(nullptr, 6, dx, moved.data()));
  CHECK(aclnnLayerNormBackward(workspace.data(), size, executor, nullptr) == 0);
  CHECK(aclrtSynchronizeStream(nullptr) == 0);
  CHECK(moved.finite());
  CHECK_FALSE(dx.finite());
  CHECK(aclDestroyAclOpExecutor(executor) == 0);
}

TEST_CASE("layer norm under its other names: the same bits, and a rule more each") {
  const Runtime runtime;
  const int64_t columns = 32, many = 583705601;
  aclIntArray* const normalized = aclCreateIntArray(&columns, 1);
  for (const aclDataType dtype : {ACL_FLOAT, ACL_FLOAT16, ACL_BF16}) {
    Array x({5, 32}, dtype), weight({32}, dtype), bias({32}, dtype);
    Array out({5, 32}, dtype), mean({5, 1}, ACL_FLOAT), rstd({5, 1}, ACL_FLOAT);
    x.normal(1), weight.normal(2), bias.normal(3);
    const auto digest = [&](int status) {
      REQUIRE_MESSAGE(status == 0, sentence());
      CHECK(out.finite());
      const uint64_t result = rstd.digest(mean.digest(out.digest()));
      for (Array* array : {&out, &mean, &rstd}) std::memset(array->data(), 0xFF, array->bytes());
      return result;
    };
    const auto with_mode = [&](int32_t mode) {
      return run(aclnnLayerNormWithImplModeGetWorkspaceSize, aclnnLayerNormWithImplMode, nullptr, x, normalized, weight,
                 bias, 1e-5, out, mean, rstd, mode);
    };
    for (const char* product : {"atlas-a2-training", "atlas-a3", "host"}) {
      REQUIRE(descendSetProduct(product) == 0);
      const uint64_t expected = digest(run(aclnnLayerNormGetWorkspaceSize, aclnnLayerNorm, nullptr, x, normalized,
                                           weight, bias, 1e-5, out, mean, rstd));
      CHECK(digest(run(aclnnFastLayerNormGetWorkspaceSize, aclnnFastLayerNorm, nullptr, x, normalized, weight, bias,
                       1e-5, out, mean, rstd)) == expected);
      for (const int32_t mode : {0, 1}) CHECK(digest(with_mode(mode)) == expected);
      for (const int32_t mode : {-1, 3, INT32_MIN}) {
        REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnLayerNormWithImplMode", with_mode(mode));
        CHECK(sentence().find("implMode is " + std::to_string(mode) + ", but must be 0, 1 or 2.") != std::string::npos);
      }
      if (dtype == ACL_FLOAT16) {
        CHECK(digest(with_mode(2)) == expected);
      } else {
        REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnLayerNormWithImplMode", with_mode(2));
        CHECK(sentence().find("must be FLOAT16 where implMode is 2") != std::string::npos);
      }
    }
    for (const char* product : {"ascend-950", "atlas-inference", "atlas-training"}) {
      REQUIRE(descendSetProduct(product) == 0);
      REFUSED(ACLNN_ERR_INNER_FIND_KERNEL_ERROR, "aclnnFastLayerNorm",
              run(aclnnFastLayerNormGetWorkspaceSize, aclnnFastLayerNorm, nullptr, x, normalized, weight, bias, 1e-5,
                  out, mean, rstd));
    }
    REQUIRE(descendSetProduct("ascend-950") == 0);
    CHECK(digest(with_mode(1)) != 0);
  }
  // An executor belongs to the function that made it.
  REQUIRE(descendSetProduct("atlas-a2-training") == 0);
  Array x({5, 32}, ACL_FLOAT), out({5, 32}, ACL_FLOAT);
  x.normal(1);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  REQUIRE(aclnnFastLayerNormGetWorkspaceSize(x, normalized, nullptr, nullptr, 1e-5, out, nullptr, nullptr, &size,
                                             &executor) == 0);
  std::vector<char> workspace(size + 1);
  REFUSED(ACLNN_ERR_PARAM_INVALID, "aclnnLayerNorm", aclnnLayerNorm(workspace.data(), size, executor, nullptr));
  CHECK(aclnnFastLayerNorm(workspace.data(), size, executor, nullptr) == 0);
  // Of more columns only the sizes are looked at.
  aclIntArray* const too_many = aclCreateIntArray(&many, 1);
  aclTensor* const wide = aclCreateTensor(&many, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &many, 1, nullptr);
  aclTensor* const wide_out = aclCreateTensor(&many, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, &many, 1, nullptr);
  REFUSED(ACLNN_ERR_INNER_NULLPTR, "aclnnFastLayerNorm",
          aclnnFastLayerNormGetWorkspaceSize(wide, too_many, nullptr, nullptr, 1e-5, wide_out, nullptr, nullptr, &size,
                                             &executor));
  CHECK(sentence().find("at most 583705600") != std::string::npos);
  REQUIRE(descendSetProduct("host") == 0);
  CHECK(aclnnFastLayerNormGetWorkspaceSize(wide, too_many, nullptr, nullptr, 1e-5, wide_out, nullptr, nullptr, &size,
                                           &executor) == 0);
}

TEST_CASE("GELU by tanh under its older name: the bits of the other, and any dtype of gradInput") {
  const Runtime runtime;
  std::string tanh = "tanh", sine = "sinh";
  for (const aclDataType dtype : {ACL_FLOAT, ACL_FLOAT16}) {
    for (const char* product : {"atlas-a2-training", "atlas-inference", "atlas-training", "host"}) {
      REQUIRE(descendSetProduct(product) == 0);
      Array x({5, 300}, dtype), dy({1, 300}, dtype), y({5, 300}, dtype), dx({5, 300}, dtype), again({5, 300}, dtype);
      Array other({5, 300}, dtype == ACL_FLOAT ? ACL_FLOAT16 : ACL_FLOAT);
      x.normal(1), dy.normal(2);
      REQUIRE(run(aclnnGeluV2GetWorkspaceSize, aclnnGeluV2, nullptr, x, 1, y) == 0);
      REQUIRE(run(aclnnGeluGetWorkspaceSize, aclnnGelu, nullptr, x, again) == 0);
      CHECK(again.digest() == y.digest());
      REQUIRE(run(aclnnGeluBackwardV2GetWorkspaceSize, aclnnGeluBackwardV2, nullptr, dy, x, tanh.data(), dx) == 0);
      REQUIRE(run(aclnnGeluBackwardGetWorkspaceSize, aclnnGeluBackward, nullptr, dy, x, again) == 0);
      CHECK(again.digest() == dx.digest());
      CHECK(run(aclnnGeluBackwardGetWorkspaceSize, aclnnGeluBackward, nullptr, dy, x, other) == 0);
      const int status =
          run(aclnnGeluBackwardV2GetWorkspaceSize, aclnnGeluBackwardV2, nullptr, dy, x, tanh.data(), other);
      CHECK((status == 0) == (std::string(product) == "host"));
      CHECK(run(aclnnGeluBackwardV2GetWorkspaceSize, aclnnGeluBackwardV2, nullptr, dy, x, sine.data(), dx) ==
            ACLNN_ERR_PARAM_INVALID);
      CHECK(sentence().find("approximate is \"s...\", but must be none or tanh") != std::string::npos);
    }
  }
}

TEST_CASE("GELU's gradient of INT32, as the program of its page has it: what the same numbers in FLOAT give") {
  const Runtime runtime;
  for (const char* product : {"atlas-a2-training", "atlas-inference", "host"}) {
    REQUIRE(descendSetProduct(product) == 0);
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 300}, {5, 1}, {}, {5, 300}}) {
      Array x({5, 300}, ACL_FLOAT), dy(shape, ACL_FLOAT), dx({5, 300}, ACL_FLOAT), again({5, 300}, ACL_FLOAT);
      Array integers(shape, ACL_INT32), narrow({5, 300}, ACL_FLOAT16), same({5, 300}, ACL_FLOAT16);
      x.normal(1);
      for (int64_t i = 0; i < dy.size(); ++i) {
        const auto number = static_cast<int32_t>(i % 7 - 3);
        const auto real = static_cast<float>(number);
        std::memcpy(integers.data() + 4 * i, &number, 4);
        std::memcpy(dy.data() + 4 * i, &real, 4);
      }
      REQUIRE(run(aclnnGeluBackwardGetWorkspaceSize, aclnnGeluBackward, nullptr, dy, x, dx) == 0);
      REQUIRE(run(aclnnGeluBackwardGetWorkspaceSize, aclnnGeluBackward, nullptr, integers, x, again) == 0);
      CHECK(again.digest() == dx.digest());
      REQUIRE(run(aclnnGeluBackwardGetWorkspaceSize, aclnnGeluBackward, nullptr, dy, x, narrow) == 0);
      REQUIRE(run(aclnnGeluBackwardGetWorkspaceSize, aclnnGeluBackward, nullptr, integers, x, same) == 0);
      CHECK(same.digest() == narrow.digest());
      CHECK(run(aclnnGeluBackwardGetWorkspaceSize, aclnnGeluBackward, nullptr, dy, integers, dx) ==
            ACLNN_ERR_PARAM_INVALID);
      std::string tanh = "tanh";
      CHECK(run(aclnnGeluBackwardV2GetWorkspaceSize, aclnnGeluBackwardV2, nullptr, integers, x, tanh.data(), dx) ==
            ACLNN_ERR_PARAM_INVALID);
    }
  }
}

TEST_CASE("AdamW in place: an executor runs on, on other memory too, and what it changes is what it read") {
  const Runtime runtime;
  REQUIRE(descendSetProduct("atlas-a2-training") == 0);
  const std::vector<int64_t> shape{5, 300};
  Array var(shape, ACL_BF16), m(shape, ACL_FLOAT), v(shape, ACL_FLOAT), most(shape, ACL_FLOAT), grad(shape, ACL_BF16);
  Array step({1}, ACL_FLOAT), other(shape, ACL_BF16), other_m(shape, ACL_FLOAT), other_v(shape, ACL_FLOAT);
  Array other_most(shape, ACL_FLOAT);
  step.positive(1), grad.normal(2);
  const auto start = [](Array& p, Array& mean, Array& square, Array& largest) {
    p.normal(3), mean.normal(4), square.positive(5), largest.positive(6);
  };
  start(var, m, v, most), start(other, other_m, other_v, other_most);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  REQUIRE_MESSAGE(aclnnApplyAdamWV2GetWorkspaceSize(var, m, v, most, grad, step, 0.1f, 0.9f, 0.99f, 0.1f, 1e-6f, true,
                                                    false, &size, &executor) == 0,
                  sentence());
  CHECK(size == 0);
  REQUIRE(aclSetAclOpExecutorRepeatable(executor) == 0);
  for (int i = 0; i < 2; ++i) REQUIRE(aclnnApplyAdamWV2(nullptr, 0, executor, nullptr) == 0);
  // By the number among inputs, among outputs and among all: what is read moves with what is written.
  CHECK(aclSetInputTensorAddr(executor, 0, other, other.data()) == 0);
  CHECK(aclSetOutputTensorAddr(executor, 1, other_m, other_m.data()) == 0);
  CHECK(aclSetTensorAddr(executor, 2, other_v, other_v.data()) == 0);
  CHECK(aclSetTensorAddr(executor, 3, other_most, other_most.data()) == 0);
  const uint64_t before = var.digest();
  for (int i = 0; i < 2; ++i) REQUIRE_MESSAGE(aclnnApplyAdamWV2(nullptr, 0, executor, nullptr) == 0, sentence());
  REQUIRE(aclrtSynchronizeStream(nullptr) == 0);
  CHECK(var.digest() == before);
  CHECK(other.digest() == var.digest());
  CHECK(other_m.digest() == m.digest());
  CHECK(other_v.digest() == v.digest());
  CHECK(other_most.digest() == most.digest());
  CHECK(other.finite());
  REQUIRE(aclDestroyAclOpExecutor(executor) == 0);
  const auto call = [&](aclTensor* p, aclTensor* mean, aclTensor* largest, bool amsgrad) {
    return aclnnApplyAdamWV2GetWorkspaceSize(p, mean, v, largest, grad, step, 0.1f, 0.9f, 0.99f, 0.1f, 1e-6f, amsgrad,
                                             false, &size, &executor);
  };
  const char* const name = "aclnnApplyAdamWV2";
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, name, call(var, nullptr, most, false));
  REFUSED(ACLNN_ERR_PARAM_NULLPTR, name, call(var, m, nullptr, true));
  CHECK(sentence().find("maxGradNormOptionalRef is null") != std::string::npos);
  REFUSED(ACLNN_ERR_PARAM_INVALID, name, call(var, v, nullptr, false));  // two results in one place
  CHECK(call(var, m, nullptr, false) == 0);
  CHECK(aclDestroyAclOpExecutor(executor) == 0);
}

TEST_CASE("AdamW with its numbers in tensors: the bits of the other, and the largest v is read alone") {
  const Runtime runtime;
  REQUIRE(descendSetProduct("ascend-950") == 0);
  const std::vector<int64_t> shape{5, 300};
  Array step({1}, ACL_FLOAT);
  const float two = 2;
  std::memcpy(step.data(), &two, 4);
  for (const aclDataType dtype : {ACL_FLOAT, ACL_BF16}) {
    for (const bool amsgrad : {false, true}) {
      const auto number = [&](float value) {
        auto made = std::make_unique<Array>(std::vector<int64_t>{1, 1}, dtype);
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        if (dtype == ACL_BF16) bits >>= 16;
        std::memcpy(made->data(), &bits, made->bytes());
        return made;
      };
      // Powers of two, whose powers have no rounding.
      const auto lr = number(0.125f), decay = number(0.5f), beta1 = number(0.5f), beta2 = number(0.25f);
      const auto eps = number(0x1p-10f), power1 = number(0.25f), power2 = number(0.0625f);
      Array var(shape, dtype), m(shape, dtype), v(shape, dtype), most(shape, dtype), grad(shape, dtype);
      Array var2(shape, dtype), m2(shape, dtype), v2(shape, dtype), most2(shape, dtype);
      grad.normal(2), most.positive(6), most2.positive(6);
      var.normal(3), m.normal(4), v.positive(5), var2.normal(3), m2.normal(4), v2.positive(5);
      const uint64_t before = most.digest();
      aclTensor* const largest = amsgrad ? static_cast<aclTensor*>(most) : nullptr;
      REQUIRE(run(aclnnApplyAdamWV2GetWorkspaceSize, aclnnApplyAdamWV2, nullptr, var2, m2, v2, most2, grad, step,
                  0.125f, 0.5f, 0.25f, 0.5f, 0x1p-10f, amsgrad, true) == 0);
      REQUIRE_MESSAGE(run(aclnnApplyAdamWGetWorkspaceSize, aclnnApplyAdamW, nullptr, var, m, v, *power1, *power2, *lr,
                          *decay, *beta1, *beta2, *eps, grad, largest, amsgrad, true) == 0,
                      sentence());
      CHECK(var.digest() == var2.digest());
      CHECK(m.digest() == m2.digest());
      CHECK(v.digest() == v2.digest());
      CHECK(var.finite());
      CHECK(most.digest() == before);
      CHECK((most2.digest() == before) == !amsgrad);

      const char* const name = "aclnnApplyAdamW";
      uint64_t size = 0;
      aclOpExecutor* executor = nullptr;
      Array other({1}, dtype == ACL_FLOAT ? ACL_BF16 : ACL_FLOAT), numbers({2}, dtype), none({5, 0}, dtype);
      const auto call = [&](aclTensor* rate, aclTensor* greatest, aclTensor* mean) {
        return aclnnApplyAdamWGetWorkspaceSize(var, mean, v, *power1, *power2, rate, *decay, *beta1, *beta2, *eps, grad,
                                               greatest, true, false, &size, &executor);
      };
      REFUSED(ACLNN_ERR_PARAM_NULLPTR, name, call(nullptr, most, m));
      REFUSED(ACLNN_ERR_PARAM_NULLPTR, name, call(*lr, nullptr, m));
      REFUSED(ACLNN_ERR_PARAM_INVALID, name, call(other, most, m));
      REFUSED(ACLNN_ERR_PARAM_INVALID, name, call(numbers, most, m));
      CHECK(sentence().find("lr has shape [2], but must have one element") != std::string::npos);
      REFUSED(ACLNN_ERR_PARAM_INVALID, name, call(*lr, most, none));
      REQUIRE(descendSetProduct("host") == 0);
      CHECK(call(other, most, m) == 0);
      CHECK(aclDestroyAclOpExecutor(executor) == 0);
      REQUIRE(descendSetProduct("atlas-a2-training") == 0);
      REFUSED(ACLNN_ERR_INNER_FIND_KERNEL_ERROR, name, call(*lr, most, m));
      REQUIRE(descendSetProduct("ascend-950") == 0);
    }
  }
}

TEST_CASE("add + RMS norm in place: the bits of the other, over its inputs") {
  const Runtime runtime;
  for (const aclDataType dtype : {ACL_FLOAT, ACL_FLOAT16, ACL_BF16}) {
    for (const char* product : {"atlas-a2-training", "atlas-a3", "ascend-950", "host"}) {
      REQUIRE(descendSetProduct(product) == 0);
      Array x1({5, 300}, dtype), x2({5, 300}, dtype), gamma({300}, dtype);
      Array y({5, 300}, dtype), rstd({5, 1}, ACL_FLOAT), x({5, 300}, dtype), again({5, 1}, ACL_FLOAT);
      x1.normal(1), x2.normal(2), gamma.normal(3);
      REQUIRE_MESSAGE(
          run(aclnnAddRmsNormGetWorkspaceSize, aclnnAddRmsNorm, nullptr, x1, x2, gamma, 1e-6, y, rstd, x) == 0,
          sentence());
      REQUIRE_MESSAGE(
          run(aclnnInplaceAddRmsNormGetWorkspaceSize, aclnnInplaceAddRmsNorm, nullptr, x1, x2, gamma, 1e-6, again) == 0,
          sentence());
      CHECK(x1.digest() == y.digest());
      CHECK(x2.digest() == x.digest());
      CHECK(again.digest() == rstd.digest());
    }
  }
  Array x({5, 32}, ACL_FLOAT), other({5, 32}, ACL_FLOAT), gamma({32}, ACL_FLOAT), rstd({5, 1}, ACL_FLOAT);
  Array empty({0, 32}, ACL_FLOAT), also_empty({0, 32}, ACL_FLOAT), no_rstd({0, 1}, ACL_FLOAT), wide({4, 32}, ACL_FLOAT),
      half({5, 32}, ACL_FLOAT16);
  x.normal(1), other.normal(2), gamma.normal(3);
  const auto call = [](const aclTensor* x1, const aclTensor* x2, const aclTensor* weight, double epsilon,
                       const aclTensor* statistic) {
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    const int status = aclnnInplaceAddRmsNormGetWorkspaceSize(const_cast<aclTensor*>(x1), const_cast<aclTensor*>(x2),
                                                              weight, epsilon, statistic, &size, &executor);
    if (status == 0) aclDestroyAclOpExecutor(executor);
    return status;
  };
  const char* const name = "aclnnInplaceAddRmsNorm";
  for (const char* product : {"atlas-a2-training", "host"}) {
    REQUIRE(descendSetProduct(product) == 0);
    CHECK(call(x, other, gamma, 0.0, rstd) == 0);
    REFUSED(ACLNN_ERR_PARAM_NULLPTR, name, call(nullptr, other, gamma, 0.0, rstd));
    REFUSED(ACLNN_ERR_PARAM_NULLPTR, name, call(x, other, gamma, 0.0, nullptr));
    REFUSED(ACLNN_ERR_PARAM_INVALID, name, call(x, x, gamma, 0.0, rstd));  // the sum would be the norm
    REFUSED(ACLNN_ERR_PARAM_INVALID, name, call(x, wide, gamma, 0.0, rstd));
    REFUSED(ACLNN_ERR_PARAM_INVALID, name, call(x, other, gamma, -1.0, rstd));
    const bool host = std::string(product) == "host";
    CHECK((call(x, half, gamma, 0.0, rstd) == 0) == host);
    CHECK((call(empty, also_empty, gamma, 0.0, no_rstd) == 0) == host);
  }
  for (const char* product : {"atlas-training", "atlas-200i-500-a2"}) {
    REQUIRE(descendSetProduct(product) == 0);
    REFUSED(ACLNN_ERR_INNER_FIND_KERNEL_ERROR, name, call(x, other, gamma, 0.0, rstd));
  }
}
