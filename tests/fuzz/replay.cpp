// Replays inputs of the fuzzer, without libFuzzer: replay [--threads N] FOLDER... With threads all of them make calls
// at once, each with the inputs in an order of its own.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "bytes.h"
#include "descend.h"
#include "runtime.h"

int main(int argc, char** argv) {
  size_t threads = 1;
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
      threads = std::stoul(argv[++i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  if (files.empty() || threads == 0) {
    std::fprintf(stderr, "usage: replay [--threads N] FOLDER...; the folders hold no inputs\n");
    return 2;
  }
  std::sort(files.begin(), files.end());
  std::vector<std::vector<uint8_t>> inputs;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  fuzz::is_alone = threads == 1;
  fuzz::begin();
  if (!fuzz::is_alone) fuzz::expect("descendSetProduct", descendSetProduct("host"), {0});
  std::vector<std::thread> all;
  for (size_t t = 0; t < threads; ++t) {
    all.emplace_back([&inputs, t, threads] {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const auto& input = inputs[(i + t * inputs.size() / threads) % inputs.size()];
        fuzz::run(input.data(), input.size());
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  fuzz::expect("aclFinalize", aclFinalize(), {0});
  std::printf("%zu inputs, %zu threads\n", inputs.size(), threads);
}
