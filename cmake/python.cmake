# The wheel's own part: the module descend._native.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module NumPy)
execute_process(
  COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

file(GLOB BINDING_SOURCES CONFIGURE_DEPENDS native/bindings/*.cpp)
# NOMINSIZE: a call from Python has a microsecond, so the translation is built for speed as the kernels are.
# Split mode: nanobind's own code is in the package nanobind-backend, and the module needs the stable ABI of Python 3.10
# alone.
nanobind_add_module(
  _native BACKEND_MODULE nanobind_backend STABLE_ABI_VERSION 3.10 NOMINSIZE NB_SUPPRESS_WARNINGS ${BINDING_SOURCES})
target_link_libraries(_native PRIVATE descend Python::NumPy)
# Of the engine only the headers: its one copy is in libdescend.so.
target_include_directories(_native PRIVATE $<TARGET_PROPERTY:descend_engine,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(_native PRIVATE $<TARGET_PROPERTY:descend_engine,INTERFACE_COMPILE_DEFINITIONS>)
target_compile_options(_native PRIVATE $<TARGET_PROPERTY:descend_engine,INTERFACE_COMPILE_OPTIONS>)
target_precompile_headers(_native PRIVATE native/bindings/python.h)
link_to_old_symbols(_native)
# RPATH and not RUNPATH: LD_LIBRARY_PATH may name the SDK of another build.
target_link_options(_native PRIVATE -Wl,--disable-new-dtags)
set_target_properties(_native PROPERTIES INSTALL_RPATH "$ORIGIN/sdk/lib64")
target_compile_definitions(_native PRIVATE NPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION NPY_TARGET_VERSION=NPY_1_22_API_VERSION)
target_compile_options(_native PRIVATE -Wall -Wextra -Wshadow $<$<BOOL:${DESCEND_WERROR}>:-Werror>)

install(TARGETS _native LIBRARY DESTINATION descend COMPONENT python)
install(FILES cmake/descend_npu.pth DESTINATION . COMPONENT python) # beside the package, where Python reads it at its start
include(cmake/torch.cmake)
