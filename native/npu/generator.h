// Random numbers of device `npu`.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace descend::npu {

struct Draw {
  uint64_t seed, offset;
};

// What the next random call of the current device's default generator begins with; it moves on.
Draw draw();

// A CPU generator for one call, in the place of a device's: that in `generator`, or the device's default one where it
// is none. Its numbers depend on the device generator's seed and offset alone, and the offset moves on with each call:
// what torch.npu.manual_seed, get_rng_state and set_rng_state promise holds.
c10::IValue draw_from(const c10::IValue& generator, c10::Device device);

}  // namespace descend::npu
