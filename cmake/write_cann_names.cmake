# cmake -DNM=nm -DLIBRARY=libdescend.so -DOUTPUT=names.cpp -P write_cann_names.cmake: the names of all C functions that
# the library exports, for the linker. Nothing calls what stands behind them here.
execute_process(
  COMMAND ${NM} -D --defined-only ${LIBRARY}
  OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " [TW] [A-Za-z][A-Za-z0-9_]*" symbols "${symbols}") # no mangled names
set(text "asm(\".text\\n\"\n")
foreach(symbol IN LISTS symbols)
  string(REGEX REPLACE "^ [TW] " "" name "${symbol}")
  string(APPEND text "    \".globl ${name}\\n.type ${name}, %function\\n${name}:\\n\"\n")
endforeach()
file(WRITE ${OUTPUT} "${text}    \".long 0\\n\");\n")
