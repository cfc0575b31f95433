#include "code.h"

#include <elf.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string_view>

#include "card.h"

namespace stand_in {
namespace {

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Header>
std::span<const Header> headers(const std::byte* elf, uint64_t offset, size_t count) {
  return {reinterpret_cast<const Header*>(elf + offset), count};
}

// What the compiler notes about the kernels (LLVM's user guide for AMDGPU, "Code Object Metadata").
nlohmann::json metadata(const std::byte* elf, std::span<const Elf64_Phdr> segments) {
  constexpr uint32_t kind = 32;  // NT_AMDGPU_METADATA
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_NOTE) continue;
    for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= segment.p_filesz;) {
      const std::byte* note = elf + segment.p_offset + at;
      const auto header = read<Elf64_Nhdr>(note);
      const auto whole = [](uint32_t bytes) { return (bytes + 3) / 4 * 4; };
      const auto* text = reinterpret_cast<const uint8_t*>(note + sizeof header + whole(header.n_namesz));
      if (header.n_type == kind) return nlohmann::json::from_msgpack(text, text + header.n_descsz);
      at += sizeof header + whole(header.n_namesz) + whole(header.n_descsz);
    }
  }
  throw std::runtime_error("the code object does not describe its kernels");
}

struct Symbols {
  std::span<const Elf64_Sym> all;
  const char* names;
};

Symbols symbols_of(const std::byte* elf, std::span<const Elf64_Shdr> sections) {
  for (const Elf64_Shdr& section : sections)
    if (section.sh_type == SHT_DYNSYM)
      return {headers<Elf64_Sym>(elf, section.sh_offset, section.sh_size / sizeof(Elf64_Sym)),
              reinterpret_cast<const char*>(elf + sections[section.sh_link].sh_offset)};
  throw std::runtime_error("the code object has no symbols");
}

void relocate(const std::byte* elf, std::span<const Elf64_Shdr> sections, const Symbols& symbols, std::byte* image) {
  constexpr uint32_t absolute = 3, relative = 13;  // R_AMDGPU_ABS64, R_AMDGPU_RELATIVE64
  const auto base = reinterpret_cast<uint64_t>(image);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_RELA) continue;
    for (const Elf64_Rela& entry : headers<Elf64_Rela>(elf, section.sh_offset, section.sh_size / sizeof(Elf64_Rela))) {
      uint64_t value = base + entry.r_addend;
      if (ELF64_R_TYPE(entry.r_info) == absolute) value += symbols.all[ELF64_R_SYM(entry.r_info)].st_value;
      else if (ELF64_R_TYPE(entry.r_info) != relative) throw std::runtime_error("unknown relocation in a code object");
      std::memcpy(image + entry.r_offset, &value, sizeof value);
    }
  }
}

}  // namespace

const std::byte* find_code(const void* image, const std::string& target) {
  const auto* bytes = static_cast<const std::byte*>(image);
  constexpr std::string_view magic = "__CLANG_OFFLOAD_BUNDLE__";
  if (std::memcmp(bytes, magic.data(), magic.size()) != 0) return std::memcmp(bytes, ELFMAG, SELFMAG) ? nullptr : bytes;
  const std::byte* at = bytes + magic.size();
  for (auto left = read<uint64_t>(at); left > 0; --left) {  // entries: offset, size, length of the name, name
    const auto offset = read<uint64_t>(at + 8), length = read<uint64_t>(at + 24);
    const std::string_view name(reinterpret_cast<const char*>(at + 32), length);
    if (name.ends_with("--" + target)) return bytes + offset;
    at += 24 + length;
  }
  return nullptr;
}

std::map<std::string, Kernel> load_code(const std::byte* elf) {
  const auto header = read<Elf64_Ehdr>(elf);
  const auto segments = headers<Elf64_Phdr>(elf, header.e_phoff, header.e_phnum);
  const auto sections = headers<Elf64_Shdr>(elf, header.e_shoff, header.e_shnum);
  uint64_t bytes = 0;
  for (const Elf64_Phdr& segment : segments)
    if (segment.p_type == PT_LOAD) bytes = std::max(bytes, segment.p_vaddr + segment.p_memsz);
  std::byte* image = card().place_code(bytes);
  for (const Elf64_Phdr& segment : segments)
    if (segment.p_type == PT_LOAD) std::memcpy(image + segment.p_vaddr, elf + segment.p_offset, segment.p_filesz);
  const Symbols symbols = symbols_of(elf, sections);
  relocate(elf, sections, symbols, image);

  std::map<std::string, uint64_t> addresses;
  for (const Elf64_Sym& symbol : symbols.all)
    addresses[symbols.names + symbol.st_name] = reinterpret_cast<uint64_t>(image) + symbol.st_value;
  std::map<std::string, Kernel> kernels;
  const nlohmann::json notes = metadata(elf, segments);
  for (const auto& note : notes.at("amdhsa.kernels")) {
    Kernel kernel{note.at(".name"),
                  addresses.at(note.at(".symbol")),
                  note.at(".kernarg_segment_size"),
                  note.at(".group_segment_fixed_size"),
                  note.at(".private_segment_fixed_size"),
                  note.at(".max_flat_workgroup_size"),
                  {}};
    if (note.contains(".args"))
      for (const auto& p : note.at(".args"))
        kernel.parameters.push_back({p.at(".value_kind"), p.at(".offset"), p.at(".size")});
    kernels.emplace(kernel.name, std::move(kernel));
  }
  return kernels;
}

std::vector<std::byte> argument_bytes(const Kernel& kernel, const Shape& shape, void* const* values) {
  std::vector<std::byte> bytes(kernel.argument_bytes + 8);
  size_t given = 0;
  for (const Parameter& parameter : kernel.parameters) {
    uint64_t hidden = 0;
    const void* from = &hidden;
    const int dim = parameter.kind.back() - 'x';
    if (!parameter.kind.starts_with("hidden_")) from = values[given++];
    else if (parameter.kind.starts_with("hidden_block_count_")) hidden = shape.blocks[dim];
    else if (parameter.kind.starts_with("hidden_group_size_")) hidden = shape.threads[dim];
    else if (parameter.kind == "hidden_grid_dims") hidden = 3;
    std::memcpy(bytes.data() + parameter.offset, from, parameter.size);
  }
  return bytes;
}

}  // namespace stand_in
