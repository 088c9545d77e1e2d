# The SDK: a folder laid out as CANN's own, for C and C++ programs and torch_npu: `cmake --install FOLDER --component sdk`.
# In the wheel it lies in descend/sdk, and there `descend sdk` makes the links between folders and writes the folder into
# set_env.sh on first use: a wheel would turn each link into a copy.
include(CMakePackageConfigHelpers)
configure_file(cmake/descend.pc.in descend.pc @ONLY)
write_basic_package_version_file(descendConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# What torch_npu looks for before it starts: the version of CANN, and three folders.
set(CANN_VERSION 9.1.0)
configure_file(cmake/toolkit.info ascend_toolkit_install.info @ONLY)

function(install_sdk folder component) # further arguments: EXCLUDE_FROM_ALL
  set(component COMPONENT ${component} ${ARGN})
  set(built ${CMAKE_CURRENT_BINARY_DIR})
  install(DIRECTORY include/ DESTINATION ${folder}include ${component} FILES_MATCHING PATTERN "*.h")
  install(TARGETS descend ${CANN_LIBRARIES} LIBRARY DESTINATION ${folder}lib64 ${component})
  install(FILES ${built}/descend.pc DESTINATION ${folder}lib64/pkgconfig ${component})
  install(
    FILES cmake/descendConfig.cmake ${built}/descendConfigVersion.cmake
    DESTINATION ${folder}share/cmake/descend ${component})
  install(FILES cmake/setenv.bash DESTINATION ${folder}bin ${component})
  install(FILES ${built}/ascend_toolkit_install.info DESTINATION ${folder}. ${component})
  foreach(name compiler opp runtime)
    install(
      FILES ${built}/ascend_toolkit_install.info
      DESTINATION ${folder}${name} ${component} RENAME version.info)
  endforeach()
endfunction()

if(DESCEND_PYTHON)
  install_sdk(descend/sdk/ python)
  install(FILES cmake/set_env.sh DESTINATION descend/sdk COMPONENT python)
  set(ONLY_BY_NAME EXCLUDE_FROM_ALL)
endif()
install_sdk("" sdk ${ONLY_BY_NAME})
install(CODE "
  get_filename_component(DESCEND_HOME \"\${CMAKE_INSTALL_PREFIX}\" ABSOLUTE)
  string(REPLACE \"'\" \"'\\\\''\" DESCEND_HOME \"\${DESCEND_HOME}\") # it stands between single quotes
  configure_file(\"${CMAKE_SOURCE_DIR}/cmake/set_env.sh\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/set_env.sh\" @ONLY)
" COMPONENT sdk ${ONLY_BY_NAME})
# Some build files look below the processor's folder, where CANN's own files lie.
install(CODE "
  set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_SYSTEM_PROCESSOR}-linux\")
  file(MAKE_DIRECTORY \"\${folder}\")
  file(CREATE_LINK ../include \"\${folder}/include\" SYMBOLIC)
  file(CREATE_LINK ../lib64 \"\${folder}/lib64\" SYMBOLIC)
  file(CREATE_LINK ../lib64 \"\${folder}/devlib\" SYMBOLIC)
" COMPONENT sdk ${ONLY_BY_NAME})
