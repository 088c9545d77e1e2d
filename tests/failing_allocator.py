"""A library for LD_PRELOAD whose allocations by operator new fail on demand, for tests without memory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

# fail_after(n) lets the allocation after the next n fail, once; a negative number none. It returns what was left.
# only(name) counts those alone that the library of this name makes. It returns whether the library is loaded.
SOURCE = """
#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<long> left{-1};
uintptr_t first = 0, last = UINTPTR_MAX;  // the callers that count

int find(dl_phdr_info* info, size_t, void* name) {
  if (std::strstr(info->dlpi_name, static_cast<const char*>(name)) == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    first = info->dlpi_addr + part.p_vaddr;
    last = first + part.p_memsz;
  }
  return 1;
}

}  // namespace

extern "C" long fail_after(long count) { return left.exchange(count); }
extern "C" int only(char* name) { return dl_iterate_phdr(find, name); }

void* operator new(std::size_t size) {
  const auto caller = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const bool counts = caller >= first && caller < last && left >= 0;
  void* const pointer = counts && left-- == 0 ? nullptr : std::malloc(size > 0 ? size : 1);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
"""


def build(folder: Path) -> str:
    """The library's path. Skips the test where there is no compiler."""
    if not shutil.which("g++"):
        pytest.skip("there is no compiler")
    (folder / "allocator.cpp").write_text(SOURCE)
    library = folder / "allocator.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", library, folder / "allocator.cpp"], check=True)
    return str(library)
