# find_package(descend) from the SDK's folder, wherever it lies: the targets descend::descend and, under CANN's names,
# descend::ascendcl, descend::acl_rt, descend::acl_op_compiler, descend::nnopbase, descend::opapi, descend::opapi_nn,
# descend::opapi_math, descend::opapi_transformer. All are the one library.
get_filename_component(_descend_home "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET descend::descend)
  add_library(descend::descend SHARED IMPORTED)
  set_target_properties(descend::descend PROPERTIES
    IMPORTED_LOCATION "${_descend_home}/lib64/libdescend.so"
    IMPORTED_SONAME libdescend.so
    INTERFACE_INCLUDE_DIRECTORIES "${_descend_home}/include")
  foreach(_descend_name ascendcl acl_rt acl_op_compiler nnopbase opapi opapi_nn opapi_math opapi_transformer)
    add_library(descend::${_descend_name} INTERFACE IMPORTED)
    set_target_properties(descend::${_descend_name} PROPERTIES INTERFACE_LINK_LIBRARIES descend::descend)
  endforeach()
  unset(_descend_name)
endif()
set(DESCEND_HOME "${_descend_home}")
unset(_descend_home)
