// Every operator through the C interface on fixed inputs, in every dtype and on shapes that take every path; prints a
// digest of each result. The lines must be the same on every machine with fused multiply-add.
#include <cinttypes>
#include <cstdio>
#include <initializer_list>
#include <string>

#include "aclnnop/aclnn_add_layer_norm.h"
#include "aclnnop/aclnn_add_layer_norm_grad.h"
#include "aclnnop/aclnn_add_rms_norm.h"
#include "aclnnop/aclnn_apply_adam_w_v2.h"
#include "aclnnop/aclnn_cross_entropy_loss.h"
#include "aclnnop/aclnn_cross_entropy_loss_grad.h"
#include "aclnnop/aclnn_deep_norm.h"
#include "aclnnop/aclnn_deep_norm_grad.h"
#include "aclnnop/aclnn_gelu_backward_v2.h"
#include "aclnnop/aclnn_gelu_v2.h"
#include "aclnnop/aclnn_gemma_rms_norm.h"
#include "aclnnop/aclnn_group_norm.h"
#include "aclnnop/aclnn_group_norm_backward.h"
#include "aclnnop/aclnn_group_norm_silu.h"
#include "aclnnop/aclnn_group_norm_swish.h"
#include "aclnnop/aclnn_group_norm_swish_grad.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "aclnnop/aclnn_log_softmax.h"
#include "aclnnop/aclnn_log_softmax_backward.h"
#include "aclnnop/aclnn_nsa_compress.h"
#include "aclnnop/aclnn_nsa_compress_grad.h"
#include "aclnnop/aclnn_rms_norm.h"
#include "aclnnop/aclnn_rms_norm_grad.h"
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "aclnnop/aclnn_rotary_position_embedding_grad.h"
#include "aclnnop/aclnn_scaled_masked_softmax.h"
#include "aclnnop/aclnn_scaled_masked_softmax_backward.h"
#include "aclnnop/aclnn_softmax.h"
#include "aclnnop/aclnn_softmax_backward.h"
#include "aclnnop/aclnn_swi_glu.h"
#include "aclnnop/aclnn_swi_glu_grad.h"
#include "capi.h"
#include "descend.h"

namespace {

int failures = 0;
aclrtStream stream = nullptr;

constexpr aclDataType kDtypes[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16, ACL_DOUBLE};
const char* name(aclDataType dtype) {
  return dtype == ACL_FLOAT ? "FLOAT" : dtype == ACL_FLOAT16 ? "FLOAT16" : dtype == ACL_BF16 ? "BFLOAT16" : "DOUBLE";
}

// The type of statistics beside that of the data.
aclDataType statistic(aclDataType dtype) { return dtype == ACL_DOUBLE ? ACL_DOUBLE : ACL_FLOAT; }

void report(const char* what, aclDataType dtype, std::initializer_list<int64_t> sizes, int status,
            std::initializer_list<const Array*> results) {
  uint64_t digest = 14695981039346656037u;
  for (const Array* result : results) {
    digest = result->digest(digest);
    if (status == 0 && !result->finite()) status = -1;  // what was not written is NaN
  }
  std::string shape;
  for (int64_t size : sizes) {
    if (!shape.empty()) shape += 'x';
    shape += std::to_string(size);
  }
  std::printf("%s %s %s %016" PRIx64 "\n", what, name(dtype), shape.c_str(), digest);
  if (status == 0) return;
  std::fprintf(stderr, "%s %s %s: %d %s\n", what, name(dtype), shape.c_str(), status,
               status == -1 ? "a result is not finite" : aclGetRecentErrMsg());
  ++failures;
}

void rms_norm(aclDataType dtype, int64_t rows, int64_t columns) {
  Array x({rows, columns}, dtype), dy({rows, columns}, dtype), gamma({columns}, dtype);
  Array y({rows, columns}, dtype), rstd({rows, 1}, statistic(dtype));
  x.normal(1), dy.normal(2), gamma.normal(3);
  int status = run(aclnnRmsNormGetWorkspaceSize, aclnnRmsNorm, stream, x, gamma, 1e-6, y, rstd);
  report("rms_norm", dtype, {rows, columns}, status, {&y, &rstd});
  Array dx({rows, columns}, dtype), dgamma({columns}, statistic(dtype));
  status = run(aclnnRmsNormGradGetWorkspaceSize, aclnnRmsNormGrad, stream, dy, x, rstd, gamma, dx, dgamma);
  report("rms_norm_grad", dtype, {rows, columns}, status, {&dx, &dgamma});
  status = run(aclnnGemmaRmsNormGetWorkspaceSize, aclnnGemmaRmsNorm, stream, x, gamma, 1e-6, y, rstd);
  report("gemma_rms_norm", dtype, {rows, columns}, status, {&y, &rstd});
  status = run(aclnnAddRmsNormGetWorkspaceSize, aclnnAddRmsNorm, stream, x, dy, gamma, 1e-6, y, rstd, dx);
  report("add_rms_norm", dtype, {rows, columns}, status, {&y, &rstd, &dx});
}

void layer_norm(aclDataType dtype, int64_t rows, int64_t columns) {
  const bool all[] = {true, true, true};
  aclIntArray* normalized = aclCreateIntArray(&columns, 1);
  aclBoolArray* mask = aclCreateBoolArray(all, 3);
  Array x({rows, columns}, dtype), dy({rows, columns}, dtype), weight({columns}, dtype), bias({columns}, dtype);
  Array y({rows, columns}, dtype), mean({rows, 1}, statistic(dtype)), rstd({rows, 1}, statistic(dtype));
  x.normal(1), dy.normal(2), weight.normal(3), bias.normal(4);
  int status =
      run(aclnnLayerNormGetWorkspaceSize, aclnnLayerNorm, stream, x, normalized, weight, bias, 1e-5, y, mean, rstd);
  report("layer_norm", dtype, {rows, columns}, status, {&y, &mean, &rstd});
  Array dx({rows, columns}, dtype), dweight({columns}, dtype), dbias({columns}, dtype);
  status = run(aclnnLayerNormBackwardGetWorkspaceSize, aclnnLayerNormBackward, stream, dy, x, normalized, mean, rstd,
               weight, bias, mask, dx, dweight, dbias);
  report("layer_norm_backward", dtype, {rows, columns}, status, {&dx, &dweight, &dbias});
  aclDestroyIntArray(normalized);
  aclDestroyBoolArray(mask);
}

void deep_norm(aclDataType dtype, int64_t rows, int64_t columns) {
  Array x({rows, columns}, dtype), gx({rows, columns}, dtype), dy({rows, columns}, dtype), gamma({columns}, dtype);
  Array mean({rows, 1}, statistic(dtype)), rstd({rows, 1}, statistic(dtype));
  x.normal(1), gx.normal(2), dy.normal(3), gamma.normal(4), mean.normal(5), rstd.normal(6);
  Array dx({rows, columns}, dtype), dgx({rows, columns}, dtype);
  Array dbeta({columns}, statistic(dtype)), dgamma({columns}, statistic(dtype));
  int status = run(aclnnDeepNormGradGetWorkspaceSize, aclnnDeepNormGrad, stream, dy, x, gx, gamma, mean, rstd, 0.3, dx,
                   dgx, dbeta, dgamma);
  report("deep_norm_grad", dtype, {rows, columns}, status, {&dx, &dgx, &dbeta, &dgamma});
  status = run(aclnnAddLayerNormGradGetWorkspaceSize, aclnnAddLayerNormGrad, stream, dy, x, gx, rstd, mean, gamma, dy,
               dx, dgamma, dbeta);
  report("add_layer_norm_grad", dtype, {rows, columns}, status, {&dx, &dgamma, &dbeta});
  Array beta({columns}, dtype);
  beta.normal(7);
  status = run(aclnnDeepNormGetWorkspaceSize, aclnnDeepNorm, stream, x, gx, beta, gamma, 0.3, 1e-6, mean, rstd, dx);
  report("deep_norm", dtype, {rows, columns}, status, {&mean, &rstd, &dx});
  for (const bool with_bias : {false, true}) {
    const aclTensor* const bias = with_bias ? static_cast<const aclTensor*>(beta) : nullptr;
    status = run(aclnnAddLayerNormGetWorkspaceSize, aclnnAddLayerNorm, stream, x, gx, gamma, beta, bias, 1e-5, true, dx,
                 mean, rstd, dgx);
    report("add_layer_norm", dtype, {rows, columns, with_bias}, status, {&dx, &mean, &rstd, &dgx});
  }
}

void swi_glu(aclDataType dtype, int64_t rows, int64_t columns) {
  Array x({rows, 2 * columns}, dtype), dy({rows, columns}, dtype), y({rows, columns}, dtype);
  Array dx({rows, 2 * columns}, dtype);
  x.normal(1), dy.normal(2);
  int status = run(aclnnSwiGluGetWorkspaceSize, aclnnSwiGlu, stream, x, int64_t{-1}, y);
  report("swi_glu", dtype, {rows, columns}, status, {&y});
  status = run(aclnnSwiGluGradGetWorkspaceSize, aclnnSwiGluGrad, stream, dy, x, int64_t{-1}, dx);
  report("swi_glu_grad", dtype, {rows, columns}, status, {&dx});
}

// Rows of so many pairs, which three heads share cos and sin for.
void rotary(aclDataType dtype, int64_t rows, int64_t pairs, int64_t mode) {
  Array x({rows, 3, 2 * pairs}, dtype), dy({rows, 3, 2 * pairs}, dtype), y({rows, 3, 2 * pairs}, dtype);
  Array cos({1, 3, 2 * pairs}, dtype), sin({1, 3, 2 * pairs}, dtype);
  Array dx({rows, 3, 2 * pairs}, dtype), dcos({1, 3, 2 * pairs}, dtype), dsin({1, 3, 2 * pairs}, dtype);
  x.normal(1), dy.normal(2), cos.normal(3), sin.normal(4);
  int status =
      run(aclnnRotaryPositionEmbeddingGetWorkspaceSize, aclnnRotaryPositionEmbedding, stream, x, cos, sin, mode, y);
  report("rotary_position_embedding", dtype, {rows, pairs, mode}, status, {&y});
  status = run(aclnnRotaryPositionEmbeddingGradGetWorkspaceSize, aclnnRotaryPositionEmbeddingGrad, stream, dy, cos, sin,
               x, mode, dx, dcos, dsin);
  report("rotary_position_embedding_grad", dtype, {rows, pairs, mode}, status, {&dx, &dcos, &dsin});
}

void cross_entropy(aclDataType dtype, int64_t rows, int64_t columns) {
  Array x({rows, columns}, dtype), y({rows, columns}, dtype), dx({rows, columns}, dtype);
  Array weight({columns}, statistic(dtype)), target({rows}, ACL_INT64), loss({rows}, dtype), grad({rows}, dtype);
  x.normal(1), weight.positive(2), target.below(columns, 3), grad.normal(4);
  char none[] = "none";
  for (const double smoothing : {0.0, 0.1}) {
    int status = run(aclnnCrossEntropyLossGetWorkspaceSize, aclnnCrossEntropyLoss, stream, x, target, weight, none,
                     -100, smoothing, 0.0, false, loss, y, nullptr, nullptr);
    report("cross_entropy_loss", dtype, {rows, columns, smoothing > 0}, status, {&loss, &y});
    status = run(aclnnCrossEntropyLossGradGetWorkspaceSize, aclnnCrossEntropyLossGrad, stream, grad, y, target, weight,
                 nullptr, nullptr, none, -100, smoothing, 0.0, dx);
    report("cross_entropy_loss_grad", dtype, {rows, columns, smoothing > 0}, status, {&dx});
  }
}

void gelu(aclDataType dtype, int64_t rows, int64_t columns) {
  Array x({rows, columns}, dtype), dy({rows, columns}, dtype), y({rows, columns}, dtype), dx({rows, columns}, dtype);
  x.normal(1), dy.normal(2);
  for (const int64_t form : {0, 1}) {
    std::string approximate = form == 0 ? "none" : "tanh";
    int status = run(aclnnGeluV2GetWorkspaceSize, aclnnGeluV2, stream, x, form, y);
    report("gelu_v2", dtype, {rows, columns, form}, status, {&y});
    status = run(aclnnGeluBackwardV2GetWorkspaceSize, aclnnGeluBackwardV2, stream, dy, x, approximate.data(), dx);
    report("gelu_backward_v2", dtype, {rows, columns, form}, status, {&dx});
  }
}

void softmax(aclDataType dtype, int64_t rows, int64_t columns) {
  Array x({rows, columns}, dtype), dy({rows, columns}, dtype), y({rows, columns}, dtype), dx({rows, columns}, dtype);
  x.normal(1), dy.normal(2);
  for (const int64_t dim : {0, 1}) {
    int status = run(aclnnSoftmaxGetWorkspaceSize, aclnnSoftmax, stream, x, dim, y);
    report("softmax", dtype, {rows, columns, dim}, status, {&y});
    status = run(aclnnSoftmaxBackwardGetWorkspaceSize, aclnnSoftmaxBackward, stream, dy, y, dim, dx);
    report("softmax_backward", dtype, {rows, columns, dim}, status, {&dx});
    status = run(aclnnLogSoftmaxGetWorkspaceSize, aclnnLogSoftmax, stream, x, dim, y);
    report("log_softmax", dtype, {rows, columns, dim}, status, {&y});
    status = run(aclnnLogSoftmaxBackwardGetWorkspaceSize, aclnnLogSoftmaxBackward, stream, dy, y, dim, dx);
    report("log_softmax_backward", dtype, {rows, columns, dim}, status, {&dx});
  }
}

void adam_w(aclDataType dtype, int64_t rows, int64_t columns) {
  Array var({rows, columns}, dtype), grad({rows, columns}, dtype), step({1}, ACL_FLOAT);
  Array m({rows, columns}, statistic(dtype)), v({rows, columns}, statistic(dtype)), most({rows, columns}, dtype);
  var.normal(1), grad.normal(2), m.normal(3), v.positive(4), most.positive(5), step.positive(6);
  for (const bool amsgrad : {false, true}) {
    const int status = run(aclnnApplyAdamWV2GetWorkspaceSize, aclnnApplyAdamWV2, stream, var, m, v, most, grad, step,
                           0.01f, 0.9f, 0.99f, 0.1f, 1e-6f, amsgrad, amsgrad);
    report("apply_adam_w_v2", dtype, {rows, columns, amsgrad}, status, {&var, &m, &v, &most});
  }
}

void softmax(aclDataType dtype, int64_t heads, int64_t rows, int64_t columns) {
  Array x({2, heads, rows, columns}, dtype), dy({2, heads, rows, columns}, dtype),
      mask({2, 1, rows, columns}, ACL_BOOL);
  Array y({2, heads, rows, columns}, dtype), dx({2, heads, rows, columns}, dtype);
  x.normal(1), dy.normal(2), mask.bits(3);
  int status = run(aclnnScaledMaskedSoftmaxGetWorkspaceSize, aclnnScaledMaskedSoftmax, stream, x, mask, 0.5, false, y);
  report("scaled_masked_softmax", dtype, {2, heads, rows, columns}, status, {&y});
  status = run(aclnnScaledMaskedSoftmaxBackwardGetWorkspaceSize, aclnnScaledMaskedSoftmaxBackward, stream, dy, y, mask,
               0.5, false, dx);
  report("scaled_masked_softmax_backward", dtype, {2, heads, rows, columns}, status, {&dx});
}

void group_norm(aclDataType dtype, int64_t samples, int64_t channels, int64_t groups, int64_t pixels) {
  const std::vector<int64_t> shape{samples, channels, pixels};
  Array x(shape, dtype), dy(shape, dtype), y(shape, dtype), dx(shape, dtype);
  Array gamma({channels}, dtype), beta({channels}, dtype), dgamma({channels}, dtype), dbeta({channels}, dtype);
  Array mean({samples, groups}, dtype), rstd({samples, groups}, dtype);
  x.normal(1), dy.normal(2), gamma.normal(3), beta.normal(4);
  int status = run(aclnnGroupNormSwishGetWorkspaceSize, aclnnGroupNormSwish, stream, x, gamma, beta, groups, nullptr,
                   1e-5, true, 1.0, y, mean, rstd);
  report("group_norm_swish", dtype, {samples, channels, pixels}, status, {&y, &mean, &rstd});
  status = run(aclnnGroupNormSwishGradGetWorkspaceSize, aclnnGroupNormSwishGrad, stream, dy, mean, rstd, x, gamma, beta,
               groups, nullptr, 1.0, true, true, dx, dgamma, dbeta);
  report("group_norm_swish_grad", dtype, {samples, channels, pixels}, status, {&dx, &dgamma, &dbeta});
  status = run(aclnnGroupNormGetWorkspaceSize, aclnnGroupNorm, stream, x, gamma, beta, samples, channels, pixels,
               groups, 1e-5, y, mean, rstd);
  report("group_norm", dtype, {samples, channels, pixels}, status, {&y, &mean, &rstd});
  const bool wanted[] = {true, true, true};
  aclBoolArray* const mask = aclCreateBoolArray(wanted, 3);
  status = run(aclnnGroupNormBackwardGetWorkspaceSize, aclnnGroupNormBackward, stream, dy, x, mean, rstd, gamma,
               samples, channels, pixels, groups, mask, dx, dgamma, dbeta);
  report("group_norm_backward", dtype, {samples, channels, pixels}, status, {&dx, &dgamma, &dbeta});
  aclDestroyBoolArray(mask);
  status =
      run(aclnnGroupNormSiluGetWorkspaceSize, aclnnGroupNormSilu, stream, x, gamma, beta, groups, 1e-5, y, mean, rstd);
  report("group_norm_silu", dtype, {samples, channels, pixels}, status, {&y, &mean, &rstd});
}

void nsa(aclDataType dtype, int64_t tokens, int64_t heads, int64_t depth, int64_t width, int64_t step) {
  const int64_t ends[] = {0, tokens / 3, tokens};
  const auto windows = [&](int64_t length) { return length < width ? 0 : (length - width) / step + 1; };
  const int64_t blocks = windows(ends[1]) + windows(tokens - ends[1]);
  aclIntArray* lengths = aclCreateIntArray(ends, 3);
  Array x({tokens, heads, depth}, dtype), weight({width, heads}, dtype), y({blocks, heads, depth}, dtype);
  Array dy({blocks, heads, depth}, dtype), dx({tokens, heads, depth}, dtype), dweight({width, heads}, dtype);
  x.normal(1), dy.normal(2), weight.normal(3);
  int status = run(aclnnNsaCompressGetWorkspaceSize, aclnnNsaCompress, stream, x, weight, lengths, nullptr, width, step,
                   int64_t{0}, y);
  report("nsa_compress", dtype, {tokens, heads, depth, width, step}, status, {&y});
  status = run(aclnnNsaCompressGradGetWorkspaceSize, aclnnNsaCompressGrad, stream, dy, x, weight, lengths, width, step,
               int64_t{0}, nullptr, dx, dweight);
  report("nsa_compress_grad", dtype, {tokens, heads, depth, width, step}, status, {&dx, &dweight});
  aclDestroyIntArray(lengths);
}

}  // namespace

int main() {
  if (aclInit(nullptr) != 0 || aclrtSetDevice(0) != 0 || descendSetProduct("host") != 0) return 2;
  if (aclrtCreateStream(&stream) != 0) return 2;
  for (const aclDataType dtype : kDtypes) {
    // One row, short rows, odd ones, many, and few that are long enough to be cut along the columns.
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {70, 13}, {37, 64}, {5, 333}, {300, 130}, {2, 5000}, {3, 40000}}) {
      rms_norm(dtype, rows, columns);
      layer_norm(dtype, rows, columns);
      deep_norm(dtype, rows, columns);
      swi_glu(dtype, rows, columns);
      gelu(dtype, rows, columns);
      softmax(dtype, rows, columns);
      adam_w(dtype, rows, columns);
      cross_entropy(dtype, rows, columns);
    }
    for (const auto& [rows, pairs] : {std::pair<int64_t, int64_t>{1, 2}, {7, 10}, {40, 32}, {600, 14}, {3, 1100}}) {
      for (const int64_t mode : {0, 1, 2, 3}) rotary(dtype, rows, pairs, mode);
    }
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {3, 31}, {16, 64}, {2, 1000}, {1, 9000}}) {
      softmax(dtype, 3, rows, columns);
    }
    group_norm(dtype, 2, 6, 3, 1);
    group_norm(dtype, 3, 8, 2, 77);
    group_norm(dtype, 1, 4, 4, 5000);
    group_norm(dtype, 1, 2, 1, 70000);
    nsa(dtype, 50, 2, 16, 16, 16);
    nsa(dtype, 300, 3, 40, 32, 16);
    nsa(dtype, 400, 2, 17, 128, 16);
    nsa(dtype, 90, 1, 5, 7, 3);
  }
  return aclrtDestroyStream(stream) != 0 || aclFinalize() != 0 || failures > 0;
}
