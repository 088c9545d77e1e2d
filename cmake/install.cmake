# The SDK: a folder laid out as CANN's own, for C and C++ programs and torch_npu. In the wheel it lies in descend/sdk, and
# there `descend sdk` makes the links between folders and writes the folder into set_env.sh on first use: a wheel would
# turn each link into a copy.
include(CMakePackageConfigHelpers)
if(DESCEND_PYTHON)
  set(SDK descend/sdk/)
else()
  set(SDK "")
endif()
configure_file(cmake/descend.pc.in descend.pc @ONLY)
write_basic_package_version_file(descendConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(DIRECTORY include/ DESTINATION ${SDK}include FILES_MATCHING PATTERN "*.h")
install(TARGETS descend ${CANN_LIBRARIES} LIBRARY DESTINATION ${SDK}lib64)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/descend.pc DESTINATION ${SDK}lib64/pkgconfig)
install(
  FILES cmake/descendConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/descendConfigVersion.cmake
  DESTINATION ${SDK}share/cmake/descend)
install(FILES cmake/setenv.bash DESTINATION ${SDK}bin)
# What torch_npu looks for before it starts: the version of CANN, and three folders.
set(CANN_VERSION 9.1.0)
configure_file(cmake/toolkit.info ascend_toolkit_install.info @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ascend_toolkit_install.info DESTINATION ${SDK}.)
foreach(folder compiler opp runtime)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ascend_toolkit_install.info DESTINATION ${SDK}${folder} RENAME version.info)
endforeach()
if(DESCEND_PYTHON)
  install(FILES cmake/set_env.sh DESTINATION descend/sdk)
else()
  install(CODE "
    get_filename_component(DESCEND_HOME \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
    string(REPLACE \"'\" \"'\\\\''\" DESCEND_HOME \"\${DESCEND_HOME}\") # it stands between single quotes
    configure_file(\"${CMAKE_SOURCE_DIR}/cmake/set_env.sh\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/set_env.sh\" @ONLY)
  ")
  # Some build files look below the processor's folder, where CANN's own files lie.
  install(CODE "
    set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_SYSTEM_PROCESSOR}-linux\")
    file(MAKE_DIRECTORY \"\${folder}\")
    file(CREATE_LINK ../include \"\${folder}/include\" SYMBOLIC)
    file(CREATE_LINK ../lib64 \"\${folder}/lib64\" SYMBOLIC)
    file(CREATE_LINK ../lib64 \"\${folder}/devlib\" SYMBOLIC)
  ")
endif()
