// The products that calls are checked against.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/status.h"

namespace descend {

enum class Product : uint8_t {
  kAtlasA3,
  kAtlasA2Training,
  kAtlasA2Inference,
  kAtlas200I500A2,
  kAtlasInference,
  kAtlasTraining,
  kAscend950,
  kHost,
};
inline constexpr int kProductCount = 8;

struct ProductInfo {
  Product product;
  const char* name;       // "atlas-a2-training"
  const char* documents;  // the name in Huawei's documents
  const char* soc;        // what aclrtGetSocName returns
};
const std::array<ProductInfo, kProductCount>& products();
inline const ProductInfo& info(Product product) { return products()[static_cast<int>(product)]; }

// A set of products, for tables.
class ProductSet {
 public:
  constexpr ProductSet() = default;
  template <class... P>
  constexpr explicit ProductSet(Product first, P... rest) : bits_((bit(first) | ... | bit(rest))) {}
  constexpr bool has(Product product) const { return (bits_ & bit(product)) != 0; }
  constexpr ProductSet operator|(ProductSet other) const { return from_bits(bits_ | other.bits_); }

 private:
  static constexpr uint8_t bit(Product product) { return static_cast<uint8_t>(1u << static_cast<int>(product)); }
  static constexpr ProductSet from_bits(unsigned bits) {
    ProductSet set;
    set.bits_ = static_cast<uint8_t>(bits);
    return set;
  }
  uint8_t bits_ = 0;
};

// An unknown name fails with kInvalidParam and the list of names.
Status find_product(std::string_view name, Product* product);
Status set_product(std::string_view name);  // for the process

// The product of the current call: this thread's override, else the process's, else DESCEND_PRODUCT, else
// atlas-a2-training. Fails when DESCEND_PRODUCT names none.
Status current_product(Product* product);

// Overrides the product for this thread. Returns the override before (-1: none), with which the caller restores it.
int override_thread_product(int product_or_minus_one);

}  // namespace descend
