# The names under which programs know CANN's libraries: one thin library for each, with no code of its own. All stand for
# libdescend.so, the one that holds functions and state: it is their filtee, so the loader takes every symbol from there.
# They are files and not links, for a wheel turns a link into a copy, and the loader matches a library that another one
# needs by its soname.
set(CANN_NAMES
  acl_op_compiler acl_rt acl_tdt_channel ascend_dump ascend_hal ascend_ml ascendcl ge_runner graph hccl msprofiler mspti
  nnopbase opapi opapi_math opapi_nn opapi_transformer)

# The linker wants to see in such a library what a program takes from it: the same names as libdescend.so has.
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/cann_names.cpp
  COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DLIBRARY=$<TARGET_FILE:descend> -DOUTPUT=${CMAKE_BINARY_DIR}/cann_names.cpp
          -P ${CMAKE_CURRENT_LIST_DIR}/write_cann_names.cmake
  DEPENDS descend ${CMAKE_CURRENT_LIST_DIR}/write_cann_names.cmake
  VERBATIM)
add_library(descend_names OBJECT ${CMAKE_BINARY_DIR}/cann_names.cpp)
foreach(name IN LISTS CANN_NAMES)
  add_library(cann_${name} SHARED $<TARGET_OBJECTS:descend_names>)
  target_link_libraries(cann_${name} PRIVATE descend)
  target_link_options(cann_${name} PRIVATE -nostdlib -Wl,--no-as-needed -Wl,--filter,libdescend.so)
  set_target_properties(cann_${name} PROPERTIES
    OUTPUT_NAME ${name} LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/cann
    INSTALL_RPATH "$ORIGIN")
endforeach()
list(TRANSFORM CANN_NAMES PREPEND cann_ OUTPUT_VARIABLE CANN_LIBRARIES)
