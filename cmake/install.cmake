# The SDK: a folder laid out as CANN's own, for C and C++ programs. In the wheel it lies in descend/sdk, and there
# `descend sdk` makes the links and writes the folder into set_env.sh on first use: a wheel would turn each link into a
# copy.
include(CMakePackageConfigHelpers)
if(DESCEND_PYTHON)
  set(SDK descend/sdk/)
else()
  set(SDK "")
endif()
configure_file(cmake/descend.pc.in descend.pc @ONLY)
write_basic_package_version_file(descendConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(DIRECTORY include/ DESTINATION ${SDK}include FILES_MATCHING PATTERN "*.h")
install(TARGETS descend LIBRARY DESTINATION ${SDK}lib64)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/descend.pc DESTINATION ${SDK}lib64/pkgconfig)
install(
  FILES cmake/descendConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/descendConfigVersion.cmake
  DESTINATION ${SDK}share/cmake/descend)
install(FILES cmake/setenv.bash DESTINATION ${SDK}bin)
if(DESCEND_PYTHON)
  install(FILES cmake/set_env.sh DESTINATION descend/sdk)
else()
  install(CODE "
    get_filename_component(DESCEND_HOME \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
    string(REPLACE \"'\" \"'\\\\''\" DESCEND_HOME \"\${DESCEND_HOME}\") # it stands between single quotes
    configure_file(\"${CMAKE_SOURCE_DIR}/cmake/set_env.sh\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/set_env.sh\" @ONLY)
  ")
  # CANN's names are links to the one library, so that a program that links several of them holds one state.
  foreach(name ascendcl acl_rt acl_op_compiler nnopbase opapi opapi_nn opapi_math opapi_transformer)
    install(CODE "
      file(CREATE_LINK libdescend.so \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib64/lib${name}.so\" SYMBOLIC)
    ")
  endforeach()
  # Some build files look below the processor's folder, where CANN's own files lie.
  install(CODE "
    set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_SYSTEM_PROCESSOR}-linux\")
    file(MAKE_DIRECTORY \"\${folder}\")
    file(CREATE_LINK ../include \"\${folder}/include\" SYMBOLIC)
    file(CREATE_LINK ../lib64 \"\${folder}/lib64\" SYMBOLIC)
    file(CREATE_LINK ../lib64 \"\${folder}/devlib\" SYMBOLIC)
  ")
endif()
