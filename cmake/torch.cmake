# The modules descend._torch and descend._npu, where PyTorch is in the environment that builds; without it the operators
# are registered from Python. Headers and libraries are taken from the package itself: its own CMake files would ask for CUDA, too.
set(DESCEND_TORCH AUTO CACHE STRING "Build descend._torch: ON, OFF, or AUTO: where PyTorch 2.13 or newer is installed")
set_property(CACHE DESCEND_TORCH PROPERTY STRINGS AUTO ON OFF)
if(NOT DESCEND_TORCH)
  return()
endif()

# torch_npu, which PyTorch would load by itself, is not loaded: it may be there before Descend is.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python_EXECUTABLE} -c [[
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

# PyTorch's threads are OpenMP's, of a library that is loaded by then under the same name.
find_package(OpenMP COMPONENTS CXX)

# A module for PyTorch's release that is here, from the sources of a folder.
function(add_torch_module name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  Python_add_library(${name} MODULE WITH_SOABI ${sources})
  target_include_directories(${name} PRIVATE native)
  target_include_directories(${name} SYSTEM PRIVATE ${torch}/include ${torch}/include/torch/csrc/api/include)
  target_compile_definitions(${name} PRIVATE USE_RPC USE_DISTRIBUTED _GLIBCXX_USE_CXX11_ABI=${torch_abi})
  target_precompile_headers(${name} PRIVATE <torch/library.h> <ATen/ATen.h>)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow $<$<BOOL:${DESCEND_WERROR}>:-Werror>)
  # Found by name at run time: who imports the module imports PyTorch first.
  target_link_libraries(${name} PRIVATE ${torch}/lib/libtorch_python.so ${torch}/lib/libtorch_cpu.so
                                        ${torch}/lib/libc10.so)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(${name} PRIVATE OpenMP::OpenMP_CXX)
  endif()
  set_target_properties(${name} PROPERTIES SKIP_BUILD_RPATH ON INSTALL_RPATH "")
  install(TARGETS ${name} LIBRARY DESTINATION descend COMPONENT torch) # not in wheels for other environments
endfunction()

add_torch_module(_torch native/torch)
add_torch_module(_npu native/npu)

# Which release that is: descend/_torch_module.py reads it, and loads the modules with no other.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_release CONTENT "${torch_version}")
install(FILES ${CMAKE_BINARY_DIR}/torch_release DESTINATION descend COMPONENT torch)
