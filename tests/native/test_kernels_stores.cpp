#include <doctest/doctest.h>

#include "kernels/stores.h"

using namespace descend::kernels;

TEST_CASE("rows that begin where lines do go by way of no stage, which might not hold one") {
  alignas(64) float lines[32] = {};
  // More bytes than any last-level cache holds, but results so small that the caches keep them.
  const Traffic traffic{int64_t{1} << 50, 1 << 10};
  for (const int64_t columns : {16, 3072, 1 << 20}) {
    const Rows<float> aligned{lines, columns}, shifted{lines + 1, columns};
    CHECK((stores_of(aligned, columns, traffic) == Stores::kPlain));
    CHECK((row_stores_of(aligned, columns, traffic) == Stores::kPlain));
    CHECK((stores_of(shifted, columns, traffic) == Stores::kStaged));
    CHECK((row_stores_of(shifted, columns, traffic) == (are_long<float>(columns) ? Stores::kStream : Stores::kStaged)));
  }
}
