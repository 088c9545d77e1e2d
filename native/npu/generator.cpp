#include "npu/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <cstdint>
#include <mutex>

#include "npu/torch_npu.h"

namespace descend::npu {
namespace {

// The CPU generator uses only 32 bits of a seed. For one seed of the device, no two offsets give the same 32 bits.
uint64_t cpu_seed(uint64_t seed, uint64_t offset) {
  uint64_t x = seed + 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  x ^= x >> 31;
  return static_cast<uint32_t>(x + offset * 0x9E3779B1);
}

Draw move_on(at::Generator& generator) {
  constexpr uint64_t kStep = 4;  // torch_npu's offsets are multiples of it
  const std::lock_guard lock(generator.mutex());
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + kStep);
  return {generator.current_seed(), offset / kStep};
}

}  // namespace

Draw draw() {
  at::Generator own = at::globalContext().defaultGenerator(current_device());
  return move_on(own);
}

c10::IValue draw_from(const c10::IValue& generator, c10::Device device) {
  if (device.type() != kNpu) return generator;
  at::Generator own = generator.isGenerator() ? generator.toGenerator() : at::Generator();
  if (!own.defined()) own = at::globalContext().defaultGenerator(device);
  TORCH_CHECK(own.device().type() == kNpu, "Expected a 'npu' device type for generator but found '", own.device(), "'");
  const Draw from = move_on(own);
  thread_local at::Generator cpu = at::detail::createCPUGenerator();
  cpu.set_current_seed(cpu_seed(from.seed, from.offset));
  return cpu;
}

}  // namespace descend::npu
