# The wheel's own part: the module descend._native.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module NumPy)
execute_process(
  COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

file(GLOB BINDING_SOURCES CONFIGURE_DEPENDS native/bindings/*.cpp)
# NOMINSIZE: a call from Python has a microsecond, so the translation is built for speed as the kernels are.
nanobind_add_module(_native NB_STATIC NOMINSIZE NB_SUPPRESS_WARNINGS ${BINDING_SOURCES})
target_link_libraries(_native PRIVATE descend_engine Python::NumPy)
target_compile_definitions(_native PRIVATE NPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION NPY_TARGET_VERSION=NPY_1_22_API_VERSION)
target_compile_options(_native PRIVATE -Wall -Wextra -Wshadow $<$<BOOL:${DESCEND_WERROR}>:-Werror>)

install(TARGETS _native LIBRARY DESTINATION descend)
install(FILES cmake/descend_npu.pth DESTINATION .) # beside the package, where Python reads it at its start
include(cmake/torch.cmake)
