# Libraries that run with an older glibc and libstdc++ than those that they are linked with.
include(CheckCXXSymbolExists)
include(CheckLinkerFlag)
check_cxx_symbol_exists(__GLIBC__ cstdlib HAS_GLIBC)
# Before glibc 2.34 threads are a library of their own.
set(LIBPTHREAD -Wl,--no-as-needed,-l:libpthread.so.0,--as-needed)
check_linker_flag(CXX ${LIBPTHREAD} HAS_LIBPTHREAD)
if(HAS_GLIBC AND HAS_LIBPTHREAD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT DESCEND_SANITIZE
   AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|aarch64)$")
  add_library(descend_old_symbols OBJECT native/portable/old_symbols.cpp)
endif()

function(link_to_old_symbols target)
  if(TARGET descend_old_symbols)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:descend_old_symbols>)
    target_link_options(${target} PRIVATE ${LIBPTHREAD})
  endif()
endfunction()
