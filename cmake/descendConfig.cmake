# find_package(descend) from the SDK's folder, wherever it lies: the targets descend::descend and, under CANN's names,
# descend::ascendcl, descend::nnopbase, descend::opapi and so on, one for each library there. All are the one library.
get_filename_component(_descend_home "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET descend::descend)
  add_library(descend::descend SHARED IMPORTED)
  set_target_properties(descend::descend PROPERTIES
    IMPORTED_LOCATION "${_descend_home}/lib64/libdescend.so"
    IMPORTED_SONAME libdescend.so
    INTERFACE_INCLUDE_DIRECTORIES "${_descend_home}/include")
  file(GLOB _descend_names RELATIVE "${_descend_home}/lib64" "${_descend_home}/lib64/lib*.so")
  list(TRANSFORM _descend_names REPLACE "^lib(.*)\\.so$" "\\1")
  list(REMOVE_ITEM _descend_names descend)
  foreach(_descend_name IN LISTS _descend_names)
    add_library(descend::${_descend_name} INTERFACE IMPORTED)
    set_target_properties(descend::${_descend_name} PROPERTIES INTERFACE_LINK_LIBRARIES descend::descend)
  endforeach()
  unset(_descend_name)
  unset(_descend_names)
endif()
set(DESCEND_HOME "${_descend_home}")
unset(_descend_home)
