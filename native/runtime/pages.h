// Pages for results and scratch that the library allocates itself. Faulting in a fresh page costs more than most
// kernels spend on it, so pages that come back are kept warm in a bounded cache.
#pragma once

#include <cstddef>

namespace descend {

// Results from this size on come from the pool of warm pages.
inline constexpr size_t kPageResult = size_t{1} << 20;

// Page-aligned memory of undefined contents, from the cache where one of this size class is there. Null when there is
// no memory. 0 bytes get one page.
void* take_pages(size_t bytes);
// `bytes` as given to take_pages. Null is ignored.
void give_pages(void* pointer, size_t bytes);

void trim_pages();  // gives the cached pages back to the system
size_t cached_page_bytes();
void set_page_cache_limit(size_t bytes);  // by default 1 GiB, or an eighth of the memory where that is less

namespace detail {
// What take_pages really takes: sizes round up by an eighth at most, so that slightly different ones share their pages.
// 0 if that is more than there can be.
size_t page_class(size_t bytes);
}  // namespace detail

}  // namespace descend
