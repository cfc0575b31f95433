// libtessera_mpi.so: MPI's functions as MpiFunctions. It alone is linked with MPI, and is opened where mpirun began us.
#include <mpi.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "dist/mpi_functions.h"

namespace {

using tessera::dist::MpiFunctions;

constexpr size_t kMostOfPiece = size_t{1} << 30;  // MPI counts in int

struct Request {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Datatype type = MPI_DATATYPE_NULL;  // of several pieces
  bool receives = false;
  ~Request() {
    if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
  }
};

// A type whose one element is all pieces, at their addresses.
MPI_Datatype type_of(const iovec* pieces, size_t count) {
  std::vector<int> lengths;
  std::vector<MPI_Aint> places;
  for (size_t i = 0; i < count; ++i)
    for (size_t at = 0; at < pieces[i].iov_len; at += kMostOfPiece) {
      MPI_Aint place;
      MPI_Get_address(static_cast<char*>(pieces[i].iov_base) + at, &place);
      places.push_back(place);
      lengths.push_back(static_cast<int>(std::min(kMostOfPiece, pieces[i].iov_len - at)));
    }
  MPI_Datatype type;
  MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(), places.data(), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  return type;
}

// fn(data, count, type, request) begins it.
template <class Fn>
void* begin(const iovec* pieces, size_t count, bool receives, const Fn& fn) {
  auto made = std::make_unique<Request>();
  made->receives = receives;
  if (count == 1 && pieces[0].iov_len <= kMostOfPiece) {
    fn(pieces[0].iov_base, static_cast<int>(pieces[0].iov_len), MPI_BYTE, &made->request);
  } else {
    made->type = type_of(pieces, count);
    fn(MPI_BOTTOM, 1, made->type, &made->request);
  }
  return made.release();
}

const char* start(int* rank, int* size) {
  int is_started = 0, level = 0, is_found = 0;
  void* most_tags = nullptr;
  MPI_Initialized(&is_started);
  if (!is_started && MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
    return "MPI_Init_thread failed";
  MPI_Query_thread(&level);
  if (level < MPI_THREAD_SERIALIZED) return "this MPI is for one thread alone";
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most_tags, &is_found);
  if (!is_found || *static_cast<int*>(most_tags) < (1 << 28) - 1) return "this MPI has too few tags";
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
  return nullptr;
}

void* send(const iovec* pieces, size_t count, int to, int tag) {
  return begin(pieces, count, false, [&](const void* data, int n, MPI_Datatype type, MPI_Request* request) {
    MPI_Isend(data, n, type, to, tag, MPI_COMM_WORLD, request);
  });
}

void* receive(const iovec* pieces, size_t count, int from, int tag) {
  return begin(pieces, count, true, [&](void* data, int n, MPI_Datatype type, MPI_Request* request) {
    MPI_Irecv(data, n, type, from, tag, MPI_COMM_WORLD, request);
  });
}

bool is_done(void* request) {
  int done = 0;
  MPI_Test(&static_cast<Request*>(request)->request, &done, MPI_STATUS_IGNORE);
  if (done) delete static_cast<Request*>(request);
  return done != 0;
}

void drop(void* request) {
  const std::unique_ptr<Request> owned(static_cast<Request*>(request));
  if (owned->receives) MPI_Cancel(&owned->request);
  MPI_Request_free(&owned->request);
}

void finish() {
  int is_over = 0;
  MPI_Finalized(&is_over);
  if (!is_over) MPI_Finalize();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const MpiFunctions* tessera_mpi() {
  static constexpr MpiFunctions functions{MpiFunctions::kVersion, start, send, receive, is_done, drop, finish};
  return &functions;
}
