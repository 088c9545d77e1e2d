#include "kernels/simd/isa.h"

#include <cctype>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "runtime/status.h"

namespace descend::kernels {

// A kernel that each target in the build has. The address of one that the linker did not find is null. Hidden, so that
// another build of the library in the same process is not asked.
namespace avx3 {
[[gnu::weak, gnu::visibility("hidden")]] double triad(size_t, int, double);
}
namespace avx2 {
[[gnu::weak, gnu::visibility("hidden")]] double triad(size_t, int, double);
}
namespace baseline {
[[gnu::weak, gnu::visibility("hidden")]] double triad(size_t, int, double);
}

namespace {

struct Target {
  Isa isa;
  const char* name;
};

#if defined(__x86_64__)

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  Cpuid(uint32_t leaf, uint32_t subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

constexpr bool has(uint32_t word, std::initializer_list<int> bits) {
  for (int bit : bits) {
    if (!(word >> bit & 1)) return false;
  }
  return true;
}

// The registers that the operating system saves when it switches threads.
uint64_t saved_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// What Highway's targets let the compiler use: see HWY_TARGET_STR in hwy/ops/set_macros-inl.h.
bool runs(Isa isa) {
  const Cpuid one(1, 0), seven(7, 0), extended(0x80000001u, 0);
  constexpr uint64_t kYmm = 0x6, kZmm = 0xE6;
  const bool avx2 = has(one.ecx, {0, 1, 9, 12, 19, 20, 23, 25, 27, 28, 29}) &&  // SSE3 PCLMUL SSSE3 FMA SSE4.1 SSE4.2
                                                                                // POPCNT AES OSXSAVE AVX F16C
                    has(extended.ecx, {5}) &&                                   // LZCNT
                    has(seven.ebx, {3, 5, 8}) &&                                // BMI1 AVX2 BMI2
                    (saved_state() & kYmm) == kYmm;
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && has(seven.ebx, {16, 17, 28, 30, 31}) && (saved_state() & kZmm) == kZmm;  // AVX-512 F DQ CD BW VL
}

#endif

std::vector<Target> runnable_targets() {
  std::vector<Target> targets;
#if defined(__x86_64__)
  if (avx3::triad != nullptr && runs(Isa::kAvx3)) targets.push_back({Isa::kAvx3, "AVX3"});
  if (avx2::triad != nullptr && runs(Isa::kAvx2)) targets.push_back({Isa::kAvx2, "AVX2"});
#endif
#if defined(__aarch64__)
  constexpr const char* kBaselineName = "NEON";
#else
  constexpr const char* kBaselineName = "BASELINE";
#endif
  if (baseline::triad != nullptr) targets.push_back({Isa::kBaseline, kBaselineName});
  return targets;
}

struct Choice {
  Target target;
  Status status;
  std::string names;
};

Choice make_choice() {
  const std::vector<Target> targets = runnable_targets();
  if (targets.empty()) {
    return {{Isa::kBaseline, "none"},
            failure(Code::kParamInvalid,
                    "This build of Descend has no kernels that this machine runs: it was made for "
                    "another machine alone, by DESCEND_NATIVE=ON."),
            {}};
  }
  Choice choice{targets.front(), {}, {}};
  for (const Target& target : targets) choice.names += (choice.names.empty() ? "" : ", ") + std::string(target.name);

  const char* variable = std::getenv("DESCEND_ISA");
  if (variable == nullptr || *variable == '\0') return choice;
  std::string wanted = variable;
  for (char& c : wanted) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (wanted == "AVX512") wanted = "AVX3";
  for (const Target& target : targets) {
    if (wanted == target.name) {
      choice.target = target;
      return choice;
    }
  }
  choice.status = failure(Code::kParamInvalid, "DESCEND_ISA is '", variable,
                          "', but the targets that this machine can run are: ", choice.names, ".");
  return choice;
}

const Choice& choice() {
  static const Choice made = make_choice();
  return made;
}

}  // namespace

Isa isa() { return choice().target.isa; }
const char* isa_name() { return choice().target.name; }
const Status& isa_status() { return choice().status; }
const char* isa_names() { return choice().names.c_str(); }

}  // namespace descend::kernels
