#include "operators/portability.h"

#include "operators/prepare.h"

namespace descend {

Status verdict_on(Product product, const Call& call) {
  Call moved = call;
  moved.product = product;
  return prepare(moved, nullptr);
}

}  // namespace descend
