# The kernels: each file that includes kernels/simd/dispatch.h is compiled once for each target (a set of instructions), which
# native/kernels/simd/dispatch.h explains. In double AVX2's version serves AVX-512, too: it takes 1.06 times as long (rms_norm
# and its gradient, 16x1024 to 1024x1024; 1.3 times at worst). So it is a pass of its own.
#
#    pass         target    Highway's name     floats doubles
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(KERNEL_PASSES
    "avx3         avx3      HWY_AVX3           1      0"
    "avx2         avx2      HWY_AVX2           1      0"
    "avx2_double  avx2      HWY_AVX2           0      1"
    "baseline     baseline  HWY_STATIC_TARGET  1      1")
else()
  set(KERNEL_PASSES "baseline baseline HWY_STATIC_TARGET 1 1")
endif()

# The passes that this machine takes.
if(DESCEND_NATIVE)
  include(CheckCXXSourceRuns)
  foreach(level avx512bw avx2)
    check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"${level}\") ? 0 : 1; }" DESCEND_RUNS_${level})
  endforeach()
  if(DESCEND_RUNS_avx512bw)
    list(FILTER KERNEL_PASSES INCLUDE REGEX "^(avx3|avx2_double) ")
  elseif(DESCEND_RUNS_avx2)
    list(FILTER KERNEL_PASSES INCLUDE REGEX "^avx2")
  else()
    list(FILTER KERNEL_PASSES INCLUDE REGEX "^baseline ")
  endif()
endif()

set(KERNEL_SOURCES)
set(TEMPLATE_SOURCES) # those with kernels that are templates: the others have no part in double
foreach(source ${ENGINE_SOURCES})
  file(STRINGS ${source} is_kernel REGEX "^#include \"kernels/simd/dispatch.h\"")
  file(STRINGS ${source} is_template REGEX "^DESCEND_(KERNEL|ROW_)")
  if(is_kernel)
    list(APPEND KERNEL_SOURCES ${source})
  endif()
  if(is_template)
    list(APPEND TEMPLATE_SOURCES ${source})
  endif()
endforeach()
list(REMOVE_ITEM ENGINE_SOURCES ${KERNEL_SOURCES})

set(KERNEL_LIBRARIES)
foreach(pass ${KERNEL_PASSES})
  string(REGEX REPLACE " +" ";" pass "${pass}")
  list(GET pass 0 name)
  list(GET pass 1 target)
  list(GET pass 2 highway)
  list(GET pass 3 floats)
  list(GET pass 4 doubles)
  if(floats)
    add_library(kernels_${name} OBJECT ${KERNEL_SOURCES})
  else()
    add_library(kernels_${name} OBJECT ${TEMPLATE_SOURCES})
  endif()
  target_compile_definitions(kernels_${name} PRIVATE
    DESCEND_TARGET=${target} DESCEND_HWY_TARGET=${highway} DESCEND_FLOATS=${floats} DESCEND_DOUBLES=${doubles})
  list(APPEND KERNEL_LIBRARIES kernels_${name})
endforeach()
