// Memory that two processes share, by keys and by handles. The other process is forked before the runtime starts, and
// starts its own.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "capi_runtime.h"
#include "in_child.h"

namespace {

using Key = std::array<char, 65>;
constexpr size_t kPiece = size_t{2} << 20;

// Another process and a pipe each way. Its body tells by its result whether all was well.
class Peer {
 public:
  explicit Peer(const std::function<bool(Peer&)>& body) {
    int to_child[2], to_parent[2];
    REQUIRE(pipe(to_child) == 0);
    REQUIRE(pipe(to_parent) == 0);
    process_ = fork_in_calm();
    REQUIRE(process_ >= 0);
    const bool is_child = process_ == 0;
    read_ = is_child ? to_child[0] : to_parent[0];
    write_ = is_child ? to_parent[1] : to_child[1];
    close(is_child ? to_child[1] : to_parent[1]);
    close(is_child ? to_parent[0] : to_child[0]);
    if (!is_child) return;
    alarm(60);
    bool well = aclInit(nullptr) == 0 && aclrtSetDevice(0) == 0 && body(*this);
    if (!well) std::fprintf(stderr, "in the other process: %s\n", aclGetRecentErrMsg());
    well = aclFinalize() == 0 && well;
    _exit(well ? 0 : 1);
  }
  ~Peer() {
    if (process_ > 0) CHECK(wait() == 0);
    close(read_), close(write_);
  }

  template <class T>
  void send(const T& value) {
    CHECK(write(write_, &value, sizeof value) == static_cast<ssize_t>(sizeof value));
  }
  template <class T>
  T receive() {
    T value{};
    (void)!read(read_, &value, sizeof value);
    return value;
  }
  int wait() {
    int status = -1;
    if (process_ > 0) waitpid(process_, &status, 0);
    process_ = 0;
    return status;
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
  int read_ = -1, write_ = -1;
};

// False where the system does not let memory that is in use be moved, which must be said then.
bool exported(void* memory, size_t bytes, uint64_t flags, Key* key) {
  const int status = aclrtIpcMemGetExportKey(memory, bytes, key->data(), key->size(), flags);
  if (status == 0) return true;
  CHECK_MESSAGE(status == ACL_ERROR_FEATURE_UNSUPPORTED, sentence());
  CHECK(sentence().find("does not permit") != std::string::npos);
  MESSAGE("left out: " << sentence());
  return false;
}

char* allocated(size_t bytes) {
  void* memory = nullptr;
  CHECK(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
  return static_cast<char*>(memory);
}

aclrtDrvMemHandle physical(size_t bytes = kPiece) {
  aclrtPhysicalMemProp prop{};
  prop.memAttr = ACL_HBM_MEM_HUGE;
  prop.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
  aclrtDrvMemHandle handle = nullptr;
  CHECK(aclrtMallocPhysical(&handle, bytes, &prop, 0) == 0);
  return handle;
}

char* map(aclrtDrvMemHandle handle, size_t bytes = kPiece) {
  void* start = nullptr;
  if (aclrtReserveMemAddress(&start, bytes, 0, nullptr, 0) != 0) return nullptr;
  return aclrtMapMem(start, bytes, 0, handle, 0) == 0 ? static_cast<char*>(start) : nullptr;
}

}  // namespace

TEST_CASE("an allocation is one memory for the process that exports it and those that import it" * FORKS) {
  for (const size_t bytes : {size_t{4096}, size_t{100000}, size_t{2} << 20, (size_t{20} << 20) + 12345}) {
    CAPTURE(bytes);
    Peer peer([bytes](Peer& parent) {
      const auto key = parent.receive<Key>();
      void* start = nullptr;
      if (key[0] == '\0') return true;
      if (aclrtIpcMemImportByKey(&start, key.data(), ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS) != 0) return false;
      char* const memory = static_cast<char*>(start);
      bool well = memory[0] == 11 && memory[bytes - 1] == 12;
      memory[1] = 21;
      // It is an allocation with bounds in this process, which other functions free.
      well = well && aclrtMemset(memory, bytes + 1, 0, bytes + 1) != 0 && aclrtFree(memory) != 0;
      aclrtPtrAttributes attributes{};
      well = well && aclrtPointerGetAttributes(memory, &attributes) == 0 &&
             attributes.location.type == ACL_MEM_LOCATION_TYPE_DEVICE;
      void* twice = nullptr;
      well = well && aclrtIpcMemImportByKey(&twice, key.data(), 0) == ACL_ERROR_INVALID_PARAM;
      parent.send(char{1});
      (void)parent.receive<char>();
      well = well && memory[2] == 31;
      well = well && aclrtIpcMemClose(key.data()) == 0 && aclrtIpcMemClose(key.data()) == ACL_ERROR_INVALID_PARAM;
      // Nothing of it is known any more, and it can be had again.
      well = well && aclrtIpcMemImportByKey(&start, key.data(), 0) == 0 && static_cast<char*>(start)[2] == 31;
      return well;
    });
    const Runtime runtime;
    char* const memory = allocated(bytes);
    memory[0] = 11, memory[bytes - 1] = 12;
    Key key{};
    if (exported(memory, bytes, ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION, &key)) {
      CHECK(memory[0] == 11);
      CHECK(memory[bytes - 1] == 12);
      peer.send(key);
      (void)peer.receive<char>();
      CHECK(memory[1] == 21);
      memory[2] = 31;
      peer.send(char{1});
      CHECK(peer.wait() == 0);
      CHECK(aclrtIpcMemClose(key.data()) == 0);
      REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemClose", aclrtIpcMemClose(key.data()));
      CHECK(memory[2] == 31);
    } else {
      peer.send(key);
    }
    CHECK(aclrtFree(memory) == 0);
  }
}

// The system suspends the writers. ThreadSanitizer does not see that, and an emulated system does not do it.
#if defined(__SANITIZE_THREAD__) || defined(DESCEND_EMULATED)
constexpr bool kSeesTheSystem = false;
#else
constexpr bool kSeesTheSystem = true;
#endif

TEST_CASE("whoever writes while an allocation is exported loses nothing" * doctest::timeout(60) *
          doctest::skip(!kSeesTheSystem)) {
  const Runtime runtime;
  for (int round = 0; round < 10; ++round) {
    constexpr size_t kNumbers = (size_t{3} << 20) / sizeof(uint64_t);
    char* const memory = allocated(kNumbers * sizeof(uint64_t));
    std::memset(memory, 0, kNumbers * sizeof(uint64_t));
    auto* const numbers = reinterpret_cast<volatile uint64_t*>(memory);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> passes{0};
    std::thread writer([&] {
      do {
        for (size_t i = 0; i < kNumbers; i += 64) numbers[i] = numbers[i] + 1;
        ++passes;
      } while (!stop);
    });
    while (passes == 0) std::this_thread::yield();
    Key key{};
    const bool was_exported = exported(memory, kNumbers * sizeof(uint64_t), 0, &key);
    stop = true;
    writer.join();
    size_t wrong = 0;
    for (size_t i = 0; i < kNumbers; i += 64) wrong += numbers[i] != passes;
    CHECK(wrong == 0);
    CHECK(aclrtFree(memory) == 0);
    if (!was_exported) return;
  }
}

TEST_CASE("only the processes on the list import" * FORKS) {
  Peer peer([](Peer& parent) {
    const auto key = parent.receive<Key>();
    if (key[0] == '\0') return true;
    void* start = nullptr;
    if (aclrtIpcMemImportByKey(&start, key.data(), 0) != ACL_ERROR_RT_NO_PERMISSION) return false;
    if (std::string(aclGetRecentErrMsg()).find("is not on the list") == std::string::npos) return false;
    parent.send(char{1});
    (void)parent.receive<char>();
    return aclrtIpcMemImportByKey(&start, key.data(), 0) == 0 && static_cast<char*>(start)[5] == 55;
  });
  const Runtime runtime;
  char* const memory = allocated(8192);
  memory[5] = 55;
  Key key{};
  if (!exported(memory, 8192, ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT, &key)) {
    peer.send(key);
    return;
  }
  peer.send(key);
  (void)peer.receive<char>();
  std::vector<int32_t> pids{1, peer.process()};
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemSetImportPid", aclrtIpcMemSetImportPid(key.data(), nullptr, 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemSetImportPid", aclrtIpcMemSetImportPid(nullptr, pids.data(), 1));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemSetImportPid", aclrtIpcMemSetImportPid(key.data(), pids.data(), 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemSetImportPid", aclrtIpcMemSetImportPid("name", pids.data(), 1));
  CHECK(aclrtIpcMemSetImportPid(key.data(), pids.data(), pids.size()) == 0);
  peer.send(char{1});
  CHECK(peer.wait() == 0);
  pids.assign(2000, 1);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemSetImportPid", aclrtIpcMemSetImportPid(key.data(), pids.data(), 2000));
  pids[0] = 0;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemSetImportPid", aclrtIpcMemSetImportPid(key.data(), pids.data(), 1));
}

TEST_CASE("a key whose memory is shared no more, or whose process has ended, is refused" * FORKS) {
  Key key{};
  {
    Peer peer([](Peer& parent) {
      char* const memory = allocated(8192);
      Key own{};
      const bool was_exported = exported(memory, 8192, ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION, &own);
      parent.send(own);
      (void)parent.receive<char>();
      if (!was_exported) return true;
      bool well = aclrtIpcMemClose(own.data()) == 0;
      parent.send(char{1});
      (void)parent.receive<char>();
      return well;
    });
    const Runtime runtime;
    key = peer.receive<Key>();
    peer.send(char{1});
    if (key[0] == '\0') return;
    void* start = nullptr;
    (void)peer.receive<char>();
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemImportByKey", aclrtIpcMemImportByKey(&start, key.data(), 0));
    CHECK(sentence().find("it is not to be found") != std::string::npos);
    peer.send(char{1});
  }
  const Runtime runtime;
  void* start = nullptr;
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemImportByKey", aclrtIpcMemImportByKey(&start, key.data(), 0));
  CHECK(start == nullptr);
}

TEST_CASE("what was imported outlives its owner's allocation, and its owner" * FORKS) {
  Peer peer([](Peer& parent) {
    char* const memory = allocated(kPiece);
    memory[7] = 77;
    Key key{};
    const bool was_exported = exported(memory, kPiece, ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION, &key);
    parent.send(key);
    if (!was_exported) return true;
    (void)parent.receive<char>();
    return aclrtFree(memory) == 0;
  });
  const Runtime runtime;
  const auto key = peer.receive<Key>();
  if (key[0] == '\0') return;
  void* start = nullptr;
  REQUIRE_MESSAGE(aclrtIpcMemImportByKey(&start, key.data(), 0) == 0, sentence());
  peer.send(char{1});
  CHECK(peer.wait() == 0);
  CHECK(static_cast<char*>(start)[7] == 77);
  CHECK(aclrtMemset(start, kPiece, 1, kPiece) == 0);
  CHECK(aclrtIpcMemClose(key.data()) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemset", [&] {
    char* const local = allocated(16);
    const int status = aclrtMemset(local, 17, 1, 17);
    CHECK(aclrtFree(local) == 0);
    return status;
  }());
}

TEST_CASE("what cannot be exported or imported is refused") {
  const Runtime runtime;
  Key key{};
  char* const memory = allocated(8192);
  char* const small = allocated(100);
  void* host = nullptr;
  CHECK(aclrtMallocHost(&host, 8192) == 0);
  const auto refuse = [&](void* what, size_t bytes) {
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemGetExportKey",
            aclrtIpcMemGetExportKey(what, bytes, key.data(), key.size(), 0));
  };
  refuse(nullptr, 8192);
  refuse(memory + 1, 4096);
  refuse(memory, 0);
  refuse(memory, 8193);
  refuse(small, 100);
  refuse(host, 8192);
  refuse(&key, 65);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemGetExportKey", aclrtIpcMemGetExportKey(memory, 8, nullptr, 65, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemGetExportKey", aclrtIpcMemGetExportKey(memory, 8, key.data(), 64, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemGetExportKey", aclrtIpcMemGetExportKey(memory, 8, key.data(), 65, 2));
  CHECK(key[0] == '\0');

  void* start = &key;
  const std::string self = std::to_string(getpid());
  for (const std::string& text :
       {std::string(), std::string("name"), std::string("descend:"), "descend:" + self, "descend:" + self + ":0:1",
        "descend:" + self + ":99999:1", "descend:" + self + ":0:1x", "descend:0" + self + ":0:1",
        std::string("descend:999999999999:0:1"), "descend:" + std::string(200, '9')}) {
    CAPTURE(text);
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemImportByKey", aclrtIpcMemImportByKey(&start, text.c_str(), 0));
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemClose", aclrtIpcMemClose(text.c_str()));
  }
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemImportByKey", aclrtIpcMemImportByKey(&start, nullptr, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemImportByKey", aclrtIpcMemImportByKey(nullptr, "name", 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemImportByKey", aclrtIpcMemImportByKey(&start, "name", 2));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemClose", aclrtIpcMemClose(nullptr));
  CHECK(start == &key);

  if (!exported(memory, 4096, 0, &key)) return;
  Key again{};
  // Exported once more it is the same; it ends with the last.
  CHECK(exported(memory, 4096, 0, &again));
  CHECK(key == again);
  refuse(memory, 8192);
  CHECK(aclrtIpcMemClose(key.data()) == 0);
  CHECK(aclrtIpcMemClose(key.data()) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemClose", aclrtIpcMemClose(key.data()));
  CHECK(exported(memory, 8192, 0, &again));
  CHECK(key != again);
  CHECK(aclrtFree(memory) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtIpcMemClose", aclrtIpcMemClose(again.data()));
  // malloc may use the freed memory again: many allocations at the same address.
  for (int i = 0; i < 100; ++i) {
    char* const other = allocated(8192);
    std::memset(other, i, 8192);
    CHECK(aclrtFree(other) == 0);
  }
}

TEST_CASE("physical memory is one memory for those that import its handle" * FORKS) {
  Peer peer([](Peer& parent) {
    const auto shareable = parent.receive<uint64_t>();
    aclrtDrvMemHandle handle = nullptr, second = nullptr;
    if (aclrtMemImportFromShareableHandle(shareable, 0, &handle) != 0) return false;
    char* const start = map(handle);
    if (start == nullptr || start[0] != 11) return false;
    start[1] = 21;
    // It can be had again, but not exported by others than its owner, nor mapped beside memory of this process.
    if (aclrtMemImportFromShareableHandle(shareable, 0, &second) != 0) return false;
    char* const other = map(second);
    if (other == nullptr || other[1] != 21) return false;
    uint64_t exported_again = 0;
    if (aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, 1, &exported_again) !=
        ACL_ERROR_INVALID_PARAM) {
      return false;
    }
    void* room = nullptr;
    if (aclrtReserveMemAddress(&room, 2 * kPiece, 0, nullptr, 0) != 0) return false;
    if (aclrtMapMem(room, kPiece, 0, handle, 0) != 0) return false;
    if (aclrtMapMem(static_cast<char*>(room) + kPiece, kPiece, 0, physical(), 0) != ACL_ERROR_INVALID_PARAM) {
      return false;
    }
    parent.send(char{1});
    (void)parent.receive<char>();  // its owner has freed it
    return start[2] == 31 && aclrtUnmapMem(start) == 0 && aclrtFreePhysical(handle) == 0 && other[2] == 31;
  });
  const Runtime runtime;
  aclrtDrvMemHandle handle = physical();
  char* const start = map(handle);
  REQUIRE(start != nullptr);
  start[0] = 11;
  uint64_t shareable = 0;
  REQUIRE_MESSAGE(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE,
                                                  ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION, &shareable) == 0,
                  sentence());
  peer.send(shareable);
  (void)peer.receive<char>();
  CHECK(start[1] == 21);
  start[2] = 31;
  CHECK(aclrtUnmapMem(start) == 0);
  CHECK(aclrtFreePhysical(handle) == 0);
  int32_t pid = peer.process();
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemSetPidToShareableHandle",
          aclrtMemSetPidToShareableHandle(shareable, &pid, 1));
  peer.send(char{1});
  CHECK(peer.wait() == 0);
}

TEST_CASE("handles have a list of processes, too, and are refused where they are none" * FORKS) {
  Peer peer([](Peer& parent) {
    const auto shareable = parent.receive<uint64_t>();
    aclrtDrvMemHandle handle = nullptr;
    if (aclrtMemImportFromShareableHandle(shareable, 0, &handle) != ACL_ERROR_RT_NO_PERMISSION) return false;
    parent.send(char{1});
    (void)parent.receive<char>();
    return aclrtMemImportFromShareableHandle(shareable, 0, &handle) == 0;
  });
  const Runtime runtime;
  aclrtDrvMemHandle handle = physical();
  uint64_t shareable = 0;
  const auto refuse = [&](int code, aclrtDrvMemHandle what, aclrtMemHandleType type, uint64_t flags, uint64_t* out) {
    REFUSED(code, "aclrtMemExportToShareableHandle", aclrtMemExportToShareableHandle(what, type, flags, out));
  };
  refuse(ACL_ERROR_INVALID_PARAM, nullptr, ACL_MEM_HANDLE_TYPE_NONE, 0, &shareable);
  refuse(ACL_ERROR_INVALID_RESOURCE_HANDLE, &shareable, ACL_MEM_HANDLE_TYPE_NONE, 0, &shareable);
  refuse(ACL_ERROR_INVALID_PARAM, handle, ACL_MEM_HANDLE_TYPE_POSIX, 0, &shareable);
  refuse(ACL_ERROR_INVALID_PARAM, handle, ACL_MEM_HANDLE_TYPE_NONE, 2, &shareable);
  refuse(ACL_ERROR_INVALID_PARAM, handle, ACL_MEM_HANDLE_TYPE_NONE, 0, nullptr);
  CHECK(shareable == 0);
  CHECK(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, 0, &shareable) == 0);
  uint64_t again = 0;
  refuse(ACL_ERROR_INVALID_PARAM, handle, ACL_MEM_HANDLE_TYPE_NONE, 0, &again);
  CHECK(sentence().find("exported already") != std::string::npos);
  peer.send(shareable);
  (void)peer.receive<char>();
  int32_t pid = peer.process();
  CHECK(aclrtMemSetPidToShareableHandle(shareable, &pid, 1) == 0);
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemSetPidToShareableHandle",
          aclrtMemSetPidToShareableHandle(shareable, &pid, 0));
  REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemSetPidToShareableHandle",
          aclrtMemSetPidToShareableHandle(shareable, nullptr, 1));
  peer.send(char{1});
  CHECK(peer.wait() == 0);
  aclrtDrvMemHandle imported = nullptr;
  const auto refuse_import = [&](int code, uint64_t what, int32_t device, aclrtDrvMemHandle* out) {
    REFUSED(code, "aclrtMemImportFromShareableHandle", aclrtMemImportFromShareableHandle(what, device, out));
  };
  refuse_import(ACL_ERROR_INVALID_PARAM, shareable, 0, &imported);  // its own
  for (const uint64_t wrong : {uint64_t{0}, uint64_t{1}, shareable ^ 1, shareable ^ uint64_t{1} << 60, ~uint64_t{0}}) {
    refuse_import(ACL_ERROR_INVALID_PARAM, wrong, 0, &imported);
    REFUSED(ACL_ERROR_INVALID_PARAM, "aclrtMemSetPidToShareableHandle",
            aclrtMemSetPidToShareableHandle(wrong, &pid, 1));
  }
  refuse_import(ACL_ERROR_INVALID_DEVICE, shareable, 1000, &imported);
  refuse_import(ACL_ERROR_INVALID_PARAM, shareable, 0, nullptr);
}

TEST_CASE("a forked child leaves its parent's exports alone" * FORKS) {
  const Runtime runtime;
  aclrtDrvMemHandle handle = physical();
  uint64_t shareable = 0;
  CHECK(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION,
                                        &shareable) == 0);
  CHECK(in_child([&] { return aclrtFreePhysical(handle) == 0 && aclFinalize() == 0; }) == 0);
  CHECK(in_child([&] {
          aclrtDrvMemHandle imported = nullptr;
          return aclrtMemImportFromShareableHandle(shareable, 0, &imported) == 0 && map(imported) != nullptr;
        }) == 0);
}
