# cmake -D FOLDER=DIR -D PATTERN=*.h -D PREFIX=NAME/ -D HEADER=FILE.h -D FUNCTION=a::b -D OUT=FILE.cpp -P embed.cmake: all files of
# that pattern below FOLDER as strings of C++. FUNCTION, which HEADER declares, gives a span of them (core/util/embedded.h).
file(GLOB_RECURSE files RELATIVE ${FOLDER} ${FOLDER}/${PATTERN})
list(SORT files)
set(text "// Made by cmake/embed.cmake.\n#include \"${HEADER}\"\n\n")
string(APPEND text "std::span<const tessera::EmbeddedFile> ${FUNCTION}() {\n  static constexpr tessera::EmbeddedFile files[] = {\n")
foreach(file ${files})
  file(READ ${FOLDER}/${file} content)
  string(APPEND text "{\"${PREFIX}${file}\", R\"embedded(${content})embedded\"},\n")
endforeach()
string(APPEND text "  };\n  return files;\n}\n")
file(WRITE ${OUT} "${text}")
