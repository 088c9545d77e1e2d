#include <doctest/doctest.h>

#include "kernels/schedule/rows.h"

using namespace descend::kernels;

TEST_CASE("rows that begin where lines do go by way of no stage, which might not hold one") {
  // More bytes than any last-level cache holds, but results so small that the caches keep them.
  RowShape shape{.rows = 1,
                 .columns = 0,
                 .size = 4,
                 .inputs = 1 << 30,
                 .outputs = 1,
                 .column_numbers = 0,
                 .together = 1,
                 .is_forward = true,
                 .has_output = true,
                 .in_stretches = false,
                 .keeps = true,
                 .unit = 64,
                 .at_once = 16};
  for (const int64_t columns : {16, 3072}) {
    shape.columns = columns;
    shape.unit = 64;
    const RowSchedule aligned = forward_schedule(shape);
    CHECK((!aligned.staged && !aligned.streams));
    shape.unit = 4;
    const RowSchedule shifted = forward_schedule(shape);
    CHECK(shifted.staged == (columns == 16));
    CHECK((shifted.streams && shifted.in_lines) == (columns == 3072));
  }
}
