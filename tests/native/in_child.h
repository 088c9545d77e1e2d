// Runs a function in a forked child, which must end well and soon.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

// ThreadSanitizer does not follow a fork of a process with threads; AddressSanitizer does, but where one of them is in
// malloc the child finds its locks taken. qemu-user aborts where a forked child starts a thread. Tests that are left
// out for that are counted as skipped.
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

// 0 if `body` returned true; -1 if the child hung or crashed, else its exit status.
template <class Body>
int in_child(Body&& body, unsigned seconds = 30) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(seconds);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -2;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
