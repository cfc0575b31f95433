# cmake -D FOLDER=src/tile -D PREFIX=tessera/tile -D OUT=FILE.cpp -P embed.cmake: every header below FOLDER as a string of
# C++, for compilers that run inside the program (src/kernels/gpu/rtc/embedded.h).
file(GLOB_RECURSE headers RELATIVE ${FOLDER} ${FOLDER}/*.h)
list(SORT headers)
set(text "// Made by cmake/embed.cmake.\n#include \"kernels/gpu/rtc/embedded.h\"\n\nnamespace tessera::gpu {\nnamespace {\n")
string(APPEND text "constexpr EmbeddedHeader headers[] = {\n")
foreach(header ${headers})
  file(READ ${FOLDER}/${header} content)
  string(APPEND text "{\"${PREFIX}/${header}\", R\"embedded(${content})embedded\"},\n")
endforeach()
string(APPEND text "};\n}  // namespace\n\nstd::span<const EmbeddedHeader> embedded_headers() { return headers; }\n\n")
string(APPEND text "}  // namespace tessera::gpu\n")
file(WRITE ${OUT} "${text}")
