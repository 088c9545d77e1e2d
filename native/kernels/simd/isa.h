// The targets (sets of instructions) that kernels are compiled for, and the one that they run with.
#pragma once

#include <cstdint>

namespace descend {
struct Status;
}

namespace descend::kernels {

enum class Isa : uint8_t { kBaseline, kAvx2, kAvx3 };

// The one whose name isa_name() is.
Isa isa();

// The best target that this CPU has among those compiled in, held down by the environment variable DESCEND_ISA
// (AVX2, AVX3 or AVX512, BASELINE, on AArch64 NEON; a name that is unknown or that this CPU lacks is an error, see
// isa_status).
const char* isa_name();

// ok, or the sentence that says what is wrong with DESCEND_ISA; checked by phase 1.
const Status& isa_status();

// All targets compiled in that this CPU can run, best first, separated by commas.
const char* isa_names();

}  // namespace descend::kernels
