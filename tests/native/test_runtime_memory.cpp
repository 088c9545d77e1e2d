#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "in_child.h"
#include "runtime/memory.h"
#include "runtime/pages.h"
#include "runtime/status.h"
#include "runtime/stream.h"

using namespace descend;

TEST_CASE("code names") {
  CHECK(std::string(code_name(Code::kParamInvalid)) == "ACLNN_ERR_PARAM_INVALID");
  CHECK(std::string(code_name(Code::kBadAlloc)) == "ACL_ERROR_BAD_ALLOC");
  CHECK(std::string(code_name(static_cast<Code>(7))) == "");
}

TEST_CASE("allocations are aligned, known and freed") {
  const size_t before = allocated_bytes();
  for (size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{4096}, size_t{1} << 20, size_t{5} << 20}) {
    void* pointer = nullptr;
    REQUIRE(allocate(bytes, &pointer).ok());
    CHECK(reinterpret_cast<uintptr_t>(pointer) % (bytes >= (4u << 20) ? (2u << 20) : 64u) == 0);
    std::memset(pointer, 1, bytes);
    CHECK(allocated_bytes() == before + bytes);
    char* const begin = static_cast<char*>(pointer);
    for (size_t offset : {size_t{0}, bytes / 2, bytes - 1}) {
      const Allocation found = find_allocation(begin + offset);
      CHECK(found.begin == begin);
      CHECK(found.bytes == bytes);
    }
    CHECK(find_allocation(begin + bytes).begin != begin);
    if (bytes > 1) {
      const Status inside = release(begin + 1);
      CHECK(inside.code == Code::kInvalidParam);
      CHECK(inside.sentence.find("1 bytes into one") != std::string::npos);
    }
    CHECK(release(pointer).ok());
    CHECK(!find_allocation(pointer));
    const Status again = release(pointer);
    CHECK(again.code == Code::kInvalidParam);
    CHECK(!again.sentence.empty());
  }
  CHECK(allocated_bytes() == before);
}

TEST_CASE("what cannot be allocated or freed is an error with a sentence") {
  int marker = 0;
  void* pointer = &marker;
  CHECK(allocate(0, &pointer).code == Code::kInvalidParam);
  CHECK(allocate(16, nullptr).code == Code::kInvalidParam);
  for (size_t bytes : {size_t{1} << 47, size_t{1} << 62, SIZE_MAX, SIZE_MAX - 63}) {
    const Status status = allocate(bytes, &pointer);
    CHECK(status.code == Code::kBadAlloc);
    CHECK(status.sentence.find(std::to_string(bytes)) != std::string::npos);
  }
  CHECK(pointer == &marker);
  CHECK(release(nullptr).code == Code::kInvalidParam);
  CHECK(release(&marker).code == Code::kInvalidParam);
  CHECK(!find_allocation(&marker));
  CHECK(!find_allocation(nullptr));
}

TEST_CASE("freeing waits for work in flight") {
  void* pointer = nullptr;
  REQUIRE(allocate(1 << 16, &pointer).ok());
  Stream stream;
  std::atomic<bool> written{false};
  stream.submit({[&] {
                   std::this_thread::sleep_for(std::chrono::milliseconds(50));
                   std::memset(pointer, 1, 1 << 16);
                   written = true;
                   return Status{};
                 },
                 int64_t{1} << 30});
  CHECK(release(pointer).ok());
  CHECK(written);
}

TEST_CASE("many threads allocate, look up and free") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<char*, size_t>> mine;
      for (int i = 0; i < 2000; ++i) {
        const size_t bytes = 1 + static_cast<size_t>(i * 37 + t) % 5000;
        void* pointer = nullptr;
        if (!allocate(bytes, &pointer).ok()) ++wrong;
        mine.emplace_back(static_cast<char*>(pointer), bytes);
        const auto [begin, size] = mine[static_cast<size_t>(i) / 2 % mine.size()];
        const Allocation found = find_allocation(begin + size - 1);
        if (found.begin != begin || found.bytes != size) ++wrong;
        if (i % 3 == 0) {
          if (!release(mine.back().first).ok()) ++wrong;
          mine.pop_back();
        }
      }
      for (const auto& [begin, size] : mine) {
        if (!release(begin).ok()) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("of several threads that free the same allocation one succeeds") {
  for (int round = 0; round < 200; ++round) {
    void* pointer = nullptr;
    REQUIRE(allocate(100, &pointer).ok());
    std::atomic<int> freed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back([&] { freed += release(pointer).ok(); });
    for (auto& thread : threads) thread.join();
    CHECK(freed == 1);
  }
}

TEST_CASE("release_all_allocations") {
  void* pointer = nullptr;
  for (int i = 0; i < 10; ++i) REQUIRE(allocate(1000, &pointer).ok());
  release_all_allocations();
  CHECK(allocated_bytes() == 0);
  CHECK(!find_allocation(pointer));
  CHECK(release(pointer).code == Code::kInvalidParam);
}

TEST_CASE("page classes") {
  CHECK(detail::page_class(0) == detail::page_class(1));
  CHECK(detail::page_class((size_t{1} << 46) + 1) == 0);
  CHECK(detail::page_class(SIZE_MAX) == 0);
  for (size_t bytes = 1 << 16; bytes < (size_t{1} << 34); bytes += bytes / 13 + 1) {
    const size_t size = detail::page_class(bytes);
    CHECK(size >= bytes);
    CHECK(size <= bytes + bytes / 8 + 4096);
    CHECK(detail::page_class(size) == size);
  }
}

TEST_CASE("pages come back warm, for slightly different sizes too") {
  trim_pages();
  CHECK(cached_page_bytes() == 0);
  const size_t bytes = (size_t{8} << 20) - 5000;
  void* const first = take_pages(bytes);
  REQUIRE(first != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(first) % (2 << 20) == 0);
  std::memset(first, 1, bytes);
  give_pages(first, bytes);
  CHECK(cached_page_bytes() == size_t{8} << 20);
  void* const second = take_pages(bytes + 3000);
  CHECK(second == first);
  CHECK(cached_page_bytes() == 0);
  void* const third = take_pages(bytes);
  CHECK(third != second);
  give_pages(second, bytes + 3000);
  give_pages(third, bytes);
  CHECK(cached_page_bytes() == size_t{16} << 20);
  CHECK(take_pages(bytes) == third);  // the latest is the warmest
  give_pages(third, bytes);
  trim_pages();
  CHECK(cached_page_bytes() == 0);
  give_pages(nullptr, 100);
}

TEST_CASE("the cache is bounded, and the oldest pages go first") {
  trim_pages();
  const size_t mb = size_t{1} << 20;
  set_page_cache_limit(4 * mb);
  void* a = take_pages(mb);
  void* b = take_pages(mb + mb / 2);
  void* c = take_pages(2 * mb);
  void* d = take_pages(5 * mb);
  give_pages(d, 5 * mb);  // larger than the whole cache
  CHECK(cached_page_bytes() == 0);
  give_pages(a, mb);
  give_pages(b, mb + mb / 2);
  CHECK(cached_page_bytes() == 2 * mb + mb / 2);
  give_pages(c, 2 * mb);  // pushes a out
  CHECK(cached_page_bytes() == 3 * mb + mb / 2);
  CHECK(take_pages(2 * mb) == c);
  CHECK(take_pages(mb + mb / 2) == b);
  give_pages(b, mb + mb / 2);
  give_pages(c, 2 * mb);
  set_page_cache_limit(0);
  CHECK(cached_page_bytes() == 0);
  void* e = take_pages(0);
  REQUIRE(e != nullptr);
  static_cast<char*>(e)[4095] = 1;
  give_pages(e, 0);
  CHECK(cached_page_bytes() == 0);
  set_page_cache_limit(size_t{256} << 20);
}

TEST_CASE("pages that cannot be had are null") {
  CHECK(take_pages(size_t{1} << 62) == nullptr);
  CHECK(take_pages(SIZE_MAX) == nullptr);
  CHECK(take_pages(size_t{1} << 46) == nullptr);
}

TEST_CASE("many threads take and give pages") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const size_t bytes = (static_cast<size_t>(i % 7) + 1) << 18;
        char* const pages = static_cast<char*>(take_pages(bytes));
        pages[0] = pages[bytes - 1] = static_cast<char>(t);
        std::this_thread::yield();
        if (pages[0] != t || pages[bytes - 1] != t) ++wrong;
        give_pages(pages, bytes);
        if (i % 100 == 0) trim_pages();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  trim_pages();
}

TEST_CASE("memory works in a forked child, whatever other threads were doing" * FORKS_BESIDE_THREADS) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        void* pointer = nullptr;
        (void)allocate(100, &pointer);
        (void)find_allocation(pointer);
        (void)release(pointer);
        give_pages(take_pages(1 << 20), 1 << 20);
      }
    });
  }
  for (int round = 0; round < 50; ++round) {
    CHECK(in_child([] {
            void* pointer = nullptr;
            if (!allocate(1000, &pointer).ok() || !find_allocation(pointer)) return false;
            if (!release(pointer).ok()) return false;
            void* const pages = take_pages(1 << 20);
            std::memset(pages, 1, 1 << 20);
            give_pages(pages, 1 << 20);
            trim_pages();
            return true;
          }) == 0);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
}
