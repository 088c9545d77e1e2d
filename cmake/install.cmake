# `cmake --install`: a folder laid out as CANN's own, for C and C++ programs.
install(DIRECTORY include/ DESTINATION include FILES_MATCHING PATTERN "*.h")
install(CODE "
  set(DESCEND_HOME \"\${CMAKE_INSTALL_PREFIX}\")
  configure_file(\"${CMAKE_SOURCE_DIR}/cmake/set_env.sh\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/set_env.sh\" @ONLY)
")
if(TARGET descend)
  install(TARGETS descend LIBRARY DESTINATION lib64)
  # CANN's names are links to the one library, so that a program that links several of them holds one state.
  foreach(name ascendcl nnopbase opapi opapi_nn opapi_math opapi_transformer)
    install(CODE "
      file(CREATE_LINK libdescend.so \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib64/lib${name}.so\" SYMBOLIC)
    ")
  endforeach()
endif()
