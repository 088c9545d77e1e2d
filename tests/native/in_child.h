// Runs a function in a forked child, which must succeed soon.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

// ThreadSanitizer does not follow a fork of a process with threads; AddressSanitizer does, but where one of them starts
// or is in malloc the child finds its locks taken (see fork_in_calm). qemu-user aborts where a forked child starts a
// thread. Tests that are left out for that are counted as skipped.
#if defined(__SANITIZE_THREAD__) || defined(DESCEND_EMULATED)
inline constexpr bool kForkTests = false, kForkBesideThreads = false;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool kForkTests = true, kForkBesideThreads = false;
#else
inline constexpr bool kForkTests = true, kForkBesideThreads = true;
#endif

// Decorators of test cases. The suite is what ./dev valgrind leaves out: in the child nobody holds any more what the
// parent's other threads held, and an address space with a limit has no room for valgrind itself.
#define FORKS doctest::test_suite("fork") * doctest::skip(!kForkTests)
#define FORKS_BESIDE_THREADS doctest::test_suite("fork") * doctest::skip(!kForkBesideThreads)

// What depends on how soon a thread comes to run, which valgrind, running one thread at a time, puts off.
#define TIMED doctest::test_suite("timed")

// Whether every other thread of this process is asleep.
inline bool others_sleep() {
  namespace fs = std::filesystem;
  const std::string self = std::to_string(gettid());
  std::error_code error;
  for (fs::directory_iterator task("/proc/self/task", error), end; !error && task != end; task.increment(error)) {
    if (task->path().filename() == self) continue;
    std::string stat;  // "TID (NAME) STATE ..."
    std::getline(std::ifstream(task->path() / "stat"), stat);
    const size_t name_end = stat.rfind(')');
    if (name_end != std::string::npos && stat.compare(name_end, 3, ") S") != 0) return false;
  }
  return true;
}

// With AddressSanitizer, only once the other threads have come to rest, out of its locks: twice in a row, since one may
// have woken another between two looks.
inline pid_t fork_in_calm() {
#if defined(__SANITIZE_ADDRESS__)
  for (int tries = 0; tries < 10000 && !(others_sleep() && others_sleep()); ++tries) std::this_thread::yield();
#endif
  return fork();
}

// 0 if `body` returned true; -1 if the child hung or crashed, else its exit status.
template <class Body>
int in_child(Body&& body, unsigned seconds = 30) {
  const pid_t child = fork_in_calm();
  if (child == 0) {
    alarm(seconds);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -2;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
