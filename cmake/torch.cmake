# The module descend._torch, where PyTorch is in the environment that builds; without it the operators are registered
# from Python. Headers and libraries are taken from the package itself: its own CMake files would ask for CUDA, too.
set(DESCEND_TORCH AUTO CACHE STRING "Build descend._torch: ON, OFF, or AUTO: where PyTorch 2.13 or newer is installed")
set_property(CACHE DESCEND_TORCH PROPERTY STRINGS AUTO ON OFF)
if(NOT DESCEND_TORCH)
  return()
endif()

execute_process(
  COMMAND ${Python_EXECUTABLE} -c [[
import os, torch
version = torch.__version__
if tuple(int(part) for part in version.split("+")[0].split(".")[:2]) < (2, 13):
    raise SystemExit(f"PyTorch {version} is too old")
print(os.path.dirname(torch.__file__), version, int(torch.compiled_with_cxx11_abi()), sep=";", end="")
]]
  WORKING_DIRECTORY / OUTPUT_VARIABLE found ERROR_VARIABLE why RESULT_VARIABLE failed)
if(failed)
  if(NOT DESCEND_TORCH STREQUAL AUTO)
    message(FATAL_ERROR "DESCEND_TORCH is ON, but PyTorch cannot be used: ${why}")
  endif()
  message(STATUS "Without descend._torch: there is no PyTorch 2.13 or newer here")
  return()
endif()
list(GET found 0 torch)
list(GET found 1 torch_version)
list(GET found 2 torch_abi)
message(STATUS "With descend._torch, for PyTorch ${torch_version}")

file(GLOB TORCH_SOURCES CONFIGURE_DEPENDS native/torch/*.cpp)
Python_add_library(_torch MODULE WITH_SOABI ${TORCH_SOURCES})
target_include_directories(_torch PRIVATE native)
target_include_directories(_torch SYSTEM PRIVATE ${torch}/include ${torch}/include/torch/csrc/api/include)
target_compile_definitions(_torch PRIVATE DESCEND_TORCH_VERSION="${torch_version}" _GLIBCXX_USE_CXX11_ABI=${torch_abi}
                                          USE_RPC USE_DISTRIBUTED)
target_compile_options(_torch PRIVATE -Wall -Wextra -Wshadow $<$<BOOL:${DESCEND_WERROR}>:-Werror>)
# Found by name at run time: descend.torch imports PyTorch first.
target_link_libraries(_torch PRIVATE ${torch}/lib/libtorch_python.so ${torch}/lib/libtorch_cpu.so
                                     ${torch}/lib/libc10.so)
# PyTorch's threads are OpenMP's, of a library that is loaded by then under the same name.
find_package(OpenMP COMPONENTS CXX)
if(OpenMP_CXX_FOUND)
  target_link_libraries(_torch PRIVATE OpenMP::OpenMP_CXX)
endif()
set_target_properties(_torch PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
install(TARGETS _torch LIBRARY DESTINATION descend)
