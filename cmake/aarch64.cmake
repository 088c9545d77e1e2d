# Toolchain: Debian's cross compiler for AArch64; tests run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(CMAKE_CXX_FLAGS_INIT -DDESCEND_EMULATED)

# Of the host's headers only these two, which are the same everywhere; /usr/include itself would bring in x86's glibc.
set(HEADERS ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-headers)
file(MAKE_DIRECTORY ${HEADERS}/include)
foreach(name hwy doctest)
  file(CREATE_LINK /usr/include/${name} ${HEADERS}/include/${name} SYMBOLIC)
endforeach()
# Debian's pyconfig.h includes the processor's own, from a folder by its name. Sizes and byte order are those of x86-64.
file(GLOB PYCONFIGS RELATIVE /usr/include/x86_64-linux-gnu /usr/include/x86_64-linux-gnu/python3*)
file(MAKE_DIRECTORY ${HEADERS}/include/aarch64-linux-gnu)
foreach(name ${PYCONFIGS})
  file(CREATE_LINK /usr/include/x86_64-linux-gnu/${name} ${HEADERS}/include/aarch64-linux-gnu/${name} SYMBOLIC)
endforeach()
set(CMAKE_FIND_ROOT_PATH ${HEADERS} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
