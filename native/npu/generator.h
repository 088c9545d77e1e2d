// Random numbers of device `npu`.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace descend::npu {

struct Draw {
  uint64_t seed, offset;
};

// Seed and offset for the next random call, from the current device's default generator. Advances its offset.
Draw draw();

// Returns a CPU generator for one call. It replaces the device generator in `generator`, or the device's default
// generator if there is none. Its numbers depend only on the seed and the offset of the device generator, and each call
// advances that offset. So torch.npu.manual_seed, get_rng_state and set_rng_state work as they should.
c10::IValue draw_from(const c10::IValue& generator, c10::Device device);

}  // namespace descend::npu
