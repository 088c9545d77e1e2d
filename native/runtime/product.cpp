#include "runtime/product.h"

#include <atomic>
#include <cstdlib>
#include <utility>

namespace descend {
namespace {

constexpr int kUnset = -1;
std::atomic<int> process_product{kUnset};
thread_local int thread_product = kUnset;

std::string names() {
  std::string list;
  for (const ProductInfo& entry : products()) list += (list.empty() ? "" : ", ") + std::string(entry.name);
  return list;
}

}  // namespace

const std::array<ProductInfo, kProductCount>& products() {
  static constexpr std::array<ProductInfo, kProductCount> table{{
      {Product::kAtlasA3, "atlas-a3", "Atlas A3 训练系列产品 / Atlas A3 推理系列产品", "Ascend910_9391"},
      {Product::kAtlasA2Training, "atlas-a2-training", "Atlas A2 训练系列产品", "Ascend910B1"},
      {Product::kAtlasA2Inference, "atlas-a2-inference", "Atlas 800I A2 推理产品 / A200I A2 Box 异构组件",
       "Ascend910B4"},
      {Product::kAtlas200I500A2, "atlas-200i-500-a2", "Atlas 200I/500 A2 推理产品", "Ascend310B1"},
      {Product::kAtlasInference, "atlas-inference", "Atlas 推理系列产品", "Ascend310P3"},
      {Product::kAtlasTraining, "atlas-training", "Atlas 训练系列产品", "Ascend910A"},
      {Product::kAscend950, "ascend-950", "Ascend 950PR / Ascend 950DT", "Ascend950PR_9599"},
      {Product::kHost, "host", "Descend's own, not a product of Huawei", "Descend"},
  }};
  return table;
}

Status find_product(std::string_view name, Product* product) {
  for (const ProductInfo& entry : products()) {
    if (name == entry.name) {
      *product = entry.product;
      return {};
    }
  }
  return failure(Code::kInvalidParam, "there is no product \"", name, "\"; the products are ", names(), ".");
}

Status set_product(std::string_view name) {
  Product product;
  DESCEND_RETURN_IF_ERROR(find_product(name, &product));
  process_product = static_cast<int>(product);
  return {};
}

Status current_product(Product* product) {
  int chosen = thread_product != kUnset ? thread_product : process_product.load(std::memory_order_relaxed);
  if (chosen == kUnset) {
    Product initial = Product::kAtlasA2Training;
    if (const char* name = std::getenv("DESCEND_PRODUCT"); name != nullptr && *name != '\0') {
      if (Status status = find_product(name, &initial); !status.ok()) {
        return failure(Code::kParamInvalid, "DESCEND_PRODUCT: ", status.sentence);
      }
    }
    // A set_product in between wins.
    chosen = static_cast<int>(initial);
    if (int expected = kUnset; !process_product.compare_exchange_strong(expected, chosen)) chosen = expected;
  }
  *product = static_cast<Product>(chosen);
  return {};
}

int override_thread_product(int product_or_minus_one) { return std::exchange(thread_product, product_or_minus_one); }

}  // namespace descend
