// Pages for results and scratch that the library allocates itself. The page fault for a new page takes longer than most
// kernels take to fill it. So pages that are given back are kept in a cache of limited size.
#pragma once

#include <cstddef>

namespace descend {

// Results from this size on come from this cache.
inline constexpr size_t kPageResult = size_t{1} << 20;

// Page-aligned memory with undefined contents, from the cache if that has a block of this size class. Null if there is
// no memory. 0 bytes get one page.
void* take_pages(size_t bytes);
// `bytes` as given to take_pages. Null is ignored.
void give_pages(void* pointer, size_t bytes);

// Asks the system to map huge pages where this memory has not been touched yet. One page fault then stands for
// hundreds. Only for sizes that have some huge pages in them; else it does nothing.
void prefer_huge_pages(void* memory, size_t bytes);

void trim_pages();  // gives the cached pages back to the system
size_t cached_page_bytes();
void set_page_cache_limit(size_t bytes);  // the default is 1 GiB, or an eighth of the memory if that is less

namespace detail {
// The size that take_pages allocates for this one. Sizes are rounded up, by an eighth at most, so that slightly
// different sizes can use the same pages. 0 if the size is too large for any allocation.
size_t page_class(size_t bytes);
}  // namespace detail

}  // namespace descend
