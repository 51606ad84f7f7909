/* The names that MPItrampoline, which is linked into jaxlib, looks up in the library of MPITRAMPOLINE_LIB.
 *
 * It looks up each name of its ABI, and a missing one ends the process. XLA uses those that shmring/jax/_mpi.pyx defines.
 * This file has the others: constants with a value of their own each, and functions that return an error. To be
 * included in that module only, since it defines what it declares.
 *
 * The names are those of MPItrampoline's ABI 2.10 (github.com/eschnett/MPItrampoline, mpiabi/).
 */
#ifndef SHMRING_MPITRAMPOLINE_H
#define SHMRING_MPITRAMPOLINE_H

#include <Python.h>
#include <stdint.h>
#include <stdio.h>

/* SUCCESS is the first: 0. */
#define SHMRING_MPI_CONSTANTS(X) \
    X(SUCCESS) X(ANY_SOURCE) X(ANY_TAG) X(PROC_NULL) X(ROOT) X(CART) X(DIST_GRAPH) X(GRAPH) X(CONGRUENT) X(IDENT) \
    X(SIMILAR) X(UNEQUAL) X(BSEND_OVERHEAD) X(KEYVAL_INVALID) X(UNDEFINED) X(APPNUM) X(HOST) X(IO) X(LASTUSEDCODE) \
    X(TAG_UB) X(UNIVERSE_SIZE) X(WIN_BASE) X(WIN_CREATE_FLAVOR) X(WIN_DISP_UNIT) X(WIN_MODEL) X(WIN_SIZE) \
    X(WTIME_IS_GLOBAL) X(COMBINER_CONTIGUOUS) X(COMBINER_DARRAY) X(COMBINER_DUP) X(COMBINER_F90_COMPLEX) \
    X(COMBINER_F90_INTEGER) X(COMBINER_F90_REAL) X(COMBINER_HINDEXED) X(COMBINER_HINDEXED_BLOCK) X(COMBINER_HVECTOR) \
    X(COMBINER_INDEXED) X(COMBINER_INDEXED_BLOCK) X(COMBINER_NAMED) X(COMBINER_RESIZED) X(COMBINER_STRUCT) \
    X(COMBINER_SUBARRAY) X(COMBINER_VECTOR) X(COMM_TYPE_SHARED) X(DISTRIBUTE_BLOCK) X(DISTRIBUTE_CYCLIC) \
    X(DISTRIBUTE_DFLT_DARG) X(DISTRIBUTE_NONE) X(ERR_ACCESS) X(ERR_AMODE) X(ERR_ARG) X(ERR_ASSERT) X(ERR_BAD_FILE) \
    X(ERR_BASE) X(ERR_BUFFER) X(ERR_COMM) X(ERR_CONVERSION) X(ERR_COUNT) X(ERR_DIMS) X(ERR_DISP) X(ERR_DUP_DATAREP) \
    X(ERR_FILE) X(ERR_FILE_EXISTS) X(ERR_FILE_IN_USE) X(ERR_GROUP) X(ERR_INFO) X(ERR_INFO_KEY) X(ERR_INFO_NOKEY) \
    X(ERR_INFO_VALUE) X(ERR_INTERN) X(ERR_IN_STATUS) X(ERR_IO) X(ERR_KEYVAL) X(ERR_LASTCODE) X(ERR_LOCKTYPE) \
    X(ERR_NAME) X(ERR_NOT_SAME) X(ERR_NO_MEM) X(ERR_NO_SPACE) X(ERR_NO_SUCH_FILE) X(ERR_OP) X(ERR_OTHER) \
    X(ERR_PENDING) X(ERR_PORT) X(ERR_QUOTA) X(ERR_RANK) X(ERR_READ_ONLY) X(ERR_REQUEST) X(ERR_RMA_ATTACH) \
    X(ERR_RMA_CONFLICT) X(ERR_RMA_FLAVOR) X(ERR_RMA_RANGE) X(ERR_RMA_SHARED) X(ERR_RMA_SYNC) X(ERR_ROOT) \
    X(ERR_SERVICE) X(ERR_SIZE) X(ERR_SPAWN) X(ERR_TAG) X(ERR_TOPOLOGY) X(ERR_TRUNCATE) X(ERR_TYPE) X(ERR_UNKNOWN) \
    X(ERR_UNSUPPORTED_DATAREP) X(ERR_UNSUPPORTED_OPERATION) X(ERR_WIN) X(LOCK_EXCLUSIVE) X(LOCK_SHARED) \
    X(MODE_APPEND) X(MODE_CREATE) X(MODE_DELETE_ON_CLOSE) X(MODE_EXCL) X(MODE_NOCHECK) X(MODE_NOPRECEDE) \
    X(MODE_NOPUT) X(MODE_NOSTORE) X(MODE_NOSUCCEED) X(MODE_RDONLY) X(MODE_RDWR) X(MODE_SEQUENTIAL) \
    X(MODE_UNIQUE_OPEN) X(MODE_WRONLY) X(ORDER_C) X(ORDER_FORTRAN) X(SEEK_CUR) X(SEEK_END) X(SEEK_SET) \
    X(THREAD_FUNNELED) X(THREAD_MULTIPLE) X(THREAD_SERIALIZED) X(THREAD_SINGLE) X(TYPECLASS_COMPLEX) \
    X(TYPECLASS_INTEGER) X(TYPECLASS_REAL) X(WIN_FLAVOR_ALLOCATE) X(WIN_FLAVOR_CREATE) X(WIN_FLAVOR_DYNAMIC) \
    X(WIN_FLAVOR_SHARED) X(WIN_SEPARATE) X(WIN_UNIFIED) X(ARGV_NULL) X(ARGVS_NULL) X(ERRCODES_IGNORE) X(UNWEIGHTED) \
    X(WEIGHTS_EMPTY) X(BOTTOM) X(IN_PLACE) X(COMM_NULL) X(COMM_SELF) X(COMM_WORLD) X(COMM_DUP_FN) \
    X(COMM_NULL_COPY_FN) X(COMM_NULL_DELETE_FN) X(DUP_FN) X(NULL_COPY_FN) X(CONVERSION_FN_NULL) X(2DOUBLE_PRECISION) \
    X(2INT) X(2INTEGER) X(2REAL) X(AINT) X(BYTE) X(CHAR) X(CHARACTER) X(COMPLEX) X(COMPLEX16) X(COMPLEX32) \
    X(COMPLEX8) X(COUNT) X(CXX_BOOL) X(CXX_DOUBLE_COMPLEX) X(CXX_FLOAT_COMPLEX) X(CXX_LONG_DOUBLE_COMPLEX) X(C_BOOL) \
    X(C_COMPLEX) X(C_DOUBLE_COMPLEX) X(C_FLOAT_COMPLEX) X(C_LONG_DOUBLE_COMPLEX) X(DATATYPE_NULL) X(DOUBLE) \
    X(DOUBLE_COMPLEX) X(DOUBLE_INT) X(DOUBLE_PRECISION) X(FLOAT) X(FLOAT_INT) X(INT) X(INT16_T) X(INT32_T) \
    X(INT64_T) X(INT8_T) X(INTEGER) X(INTEGER1) X(INTEGER2) X(INTEGER4) X(INTEGER8) X(LOGICAL) X(LONG) \
    X(LONG_DOUBLE) X(LONG_DOUBLE_INT) X(LONG_INT) X(LONG_LONG) X(LONG_LONG_INT) X(OFFSET) X(PACKED) X(REAL) \
    X(REAL16) X(REAL4) X(REAL8) X(SHORT) X(SHORT_INT) X(SIGNED_CHAR) X(UINT16_T) X(UINT32_T) X(UINT64_T) X(UINT8_T) \
    X(UNSIGNED) X(UNSIGNED_CHAR) X(UNSIGNED_LONG) X(UNSIGNED_LONG_LONG) X(UNSIGNED_SHORT) X(WCHAR) X(NULL_DELETE_FN) \
    X(ERRHANDLER_NULL) X(ERRORS_ARE_FATAL) X(ERRORS_RETURN) X(FILE_NULL) X(F_STATUS_IGNORE) X(F_STATUSES_IGNORE) \
    X(GROUP_EMPTY) X(GROUP_NULL) X(INFO_ENV) X(INFO_NULL) X(MESSAGE_NO_PROC) X(MESSAGE_NULL) X(DISPLACEMENT_CURRENT) \
    X(BAND) X(BOR) X(BXOR) X(LAND) X(LOR) X(LXOR) X(MAX) X(MAXLOC) X(MIN) X(MINLOC) X(NO_OP) X(OP_NULL) X(PROD) \
    X(REPLACE) X(SUM) X(REQUEST_NULL) X(STATUS_IGNORE) X(STATUSES_IGNORE) X(TYPE_DUP_FN) X(TYPE_NULL_COPY_FN) \
    X(TYPE_NULL_DELETE_FN) X(WIN_NULL) X(WIN_DUP_FN) X(WIN_NULL_COPY_FN) X(WIN_NULL_DELETE_FN)

#define SHMRING_MPI_UNUSED(X) \
    X(MPIABI_Send) X(MPIABI_Recv) X(MPIABI_Get_count) X(MPIABI_Bsend) X(MPIABI_Ssend) X(MPIABI_Rsend) \
    X(MPIABI_Buffer_attach) X(MPIABI_Buffer_detach) X(MPIABI_Ibsend) X(MPIABI_Issend) X(MPIABI_Irsend) \
    X(MPIABI_Test) X(MPIABI_Request_free) X(MPIABI_Waitany) X(MPIABI_Testany) X(MPIABI_Waitall) X(MPIABI_Testall) \
    X(MPIABI_Waitsome) X(MPIABI_Testsome) X(MPIABI_Request_get_status) X(MPIABI_Iprobe) X(MPIABI_Probe) \
    X(MPIABI_Improbe) X(MPIABI_Mprobe) X(MPIABI_Mrecv) X(MPIABI_Imrecv) X(MPIABI_Cancel) X(MPIABI_Test_cancelled) \
    X(MPIABI_Send_init) X(MPIABI_Bsend_init) X(MPIABI_Ssend_init) X(MPIABI_Rsend_init) X(MPIABI_Recv_init) \
    X(MPIABI_Start) X(MPIABI_Startall) X(MPIABI_Sendrecv_replace) X(MPIABI_Type_contiguous) X(MPIABI_Type_vector) \
    X(MPIABI_Type_create_hvector) X(MPIABI_Type_indexed) X(MPIABI_Type_create_hindexed) \
    X(MPIABI_Type_create_indexed_block) X(MPIABI_Type_create_hindexed_block) X(MPIABI_Type_create_struct) \
    X(MPIABI_Type_struct) X(MPIABI_Type_create_subarray) X(MPIABI_Type_create_darray) X(MPIABI_Get_address) \
    X(MPIABI_Aint_add) X(MPIABI_Aint_diff) X(MPIABI_Type_size) X(MPIABI_Type_size_x) X(MPIABI_Type_get_extent) \
    X(MPIABI_Type_get_extent_x) X(MPIABI_Type_create_resized) X(MPIABI_Type_get_true_extent) \
    X(MPIABI_Type_get_true_extent_x) X(MPIABI_Type_commit) X(MPIABI_Type_free) X(MPIABI_Type_dup) \
    X(MPIABI_Get_elements) X(MPIABI_Get_elements_x) X(MPIABI_Type_get_envelope) X(MPIABI_Type_get_contents) \
    X(MPIABI_Pack) X(MPIABI_Unpack) X(MPIABI_Pack_size) X(MPIABI_Pack_external) X(MPIABI_Unpack_external) \
    X(MPIABI_Pack_external_size) X(MPIABI_Barrier) X(MPIABI_Bcast) X(MPIABI_Gather) X(MPIABI_Gatherv) \
    X(MPIABI_Scatter) X(MPIABI_Scatterv) X(MPIABI_Allgatherv) X(MPIABI_Alltoall) X(MPIABI_Alltoallv) \
    X(MPIABI_Alltoallw) X(MPIABI_Reduce) X(MPIABI_Op_create) X(MPIABI_Op_free) X(MPIABI_Op_commutative) \
    X(MPIABI_Reduce_local) X(MPIABI_Reduce_scatter_block) X(MPIABI_Scan) X(MPIABI_Exscan) X(MPIABI_Ibarrier) \
    X(MPIABI_Ibcast) X(MPIABI_Igather) X(MPIABI_Igatherv) X(MPIABI_Iscatter) X(MPIABI_Iscatterv) \
    X(MPIABI_Iallgather) X(MPIABI_Iallgatherv) X(MPIABI_Ialltoall) X(MPIABI_Ialltoallv) X(MPIABI_Ialltoallw) \
    X(MPIABI_Ireduce) X(MPIABI_Iallreduce) X(MPIABI_Ireduce_scatter_block) X(MPIABI_Ireduce_scatter) X(MPIABI_Iscan) \
    X(MPIABI_Iexscan) X(MPIABI_Group_size) X(MPIABI_Group_rank) X(MPIABI_Group_translate_ranks) \
    X(MPIABI_Group_compare) X(MPIABI_Comm_group) X(MPIABI_Group_union) X(MPIABI_Group_intersection) \
    X(MPIABI_Group_difference) X(MPIABI_Group_incl) X(MPIABI_Group_excl) X(MPIABI_Group_range_incl) \
    X(MPIABI_Group_range_excl) X(MPIABI_Group_free) X(MPIABI_Comm_compare) X(MPIABI_Comm_dup) \
    X(MPIABI_Comm_dup_with_info) X(MPIABI_Comm_idup) X(MPIABI_Comm_create) X(MPIABI_Comm_create_group) \
    X(MPIABI_Comm_split_type) X(MPIABI_Comm_set_info) X(MPIABI_Comm_get_info) X(MPIABI_Comm_test_inter) \
    X(MPIABI_Comm_remote_size) X(MPIABI_Comm_remote_group) X(MPIABI_Intercomm_create) X(MPIABI_Intercomm_merge) \
    X(MPIABI_Comm_create_keyval) X(MPIABI_Comm_free_keyval) X(MPIABI_Comm_set_attr) X(MPIABI_Comm_get_attr) \
    X(MPIABI_Comm_delete_attr) X(MPIABI_Win_create_keyval) X(MPIABI_Win_free_keyval) X(MPIABI_Win_set_attr) \
    X(MPIABI_Win_get_attr) X(MPIABI_Win_delete_attr) X(MPIABI_Type_create_keyval) X(MPIABI_Type_free_keyval) \
    X(MPIABI_Type_set_attr) X(MPIABI_Type_get_attr) X(MPIABI_Type_delete_attr) X(MPIABI_Comm_set_name) \
    X(MPIABI_Comm_get_name) X(MPIABI_Type_set_name) X(MPIABI_Type_get_name) X(MPIABI_Win_set_name) \
    X(MPIABI_Win_get_name) X(MPIABI_Cart_create) X(MPIABI_Dims_create) X(MPIABI_Graph_create) \
    X(MPIABI_Dist_graph_create_adjacent) X(MPIABI_Dist_graph_create) X(MPIABI_Topo_test) X(MPIABI_Graphdims_get) \
    X(MPIABI_Graph_get) X(MPIABI_Cartdim_get) X(MPIABI_Cart_get) X(MPIABI_Cart_rank) X(MPIABI_Cart_coords) \
    X(MPIABI_Graph_neighbors_count) X(MPIABI_Graph_neighbors) X(MPIABI_Dist_graph_neighbors_count) \
    X(MPIABI_Dist_graph_neighbors) X(MPIABI_Cart_shift) X(MPIABI_Cart_sub) X(MPIABI_Cart_map) X(MPIABI_Graph_map) \
    X(MPIABI_Neighbor_allgather) X(MPIABI_Neighbor_allgatherv) X(MPIABI_Neighbor_alltoall) \
    X(MPIABI_Neighbor_alltoallv) X(MPIABI_Neighbor_alltoallw) X(MPIABI_Ineighbor_allgather) \
    X(MPIABI_Ineighbor_allgatherv) X(MPIABI_Ineighbor_alltoall) X(MPIABI_Ineighbor_alltoallv) \
    X(MPIABI_Ineighbor_alltoallw) X(MPIABI_Get_version) X(MPIABI_Get_library_version) X(MPIABI_Get_processor_name) \
    X(MPIABI_Alloc_mem) X(MPIABI_Free_mem) X(MPIABI_Comm_create_errhandler) X(MPIABI_Comm_set_errhandler) \
    X(MPIABI_Comm_get_errhandler) X(MPIABI_Win_create_errhandler) X(MPIABI_Win_set_errhandler) \
    X(MPIABI_Win_get_errhandler) X(MPIABI_File_create_errhandler) X(MPIABI_File_set_errhandler) \
    X(MPIABI_File_get_errhandler) X(MPIABI_Errhandler_free) X(MPIABI_Error_class) X(MPIABI_Add_error_class) \
    X(MPIABI_Add_error_code) X(MPIABI_Add_error_string) X(MPIABI_Comm_call_errhandler) X(MPIABI_Win_call_errhandler) \
    X(MPIABI_File_call_errhandler) X(MPIABI_Wtime) X(MPIABI_Wtick) X(MPIABI_Init) X(MPIABI_Initialized) \
    X(MPIABI_Abort) X(MPIABI_Finalized) X(MPIABI_Info_create) X(MPIABI_Info_set) X(MPIABI_Info_delete) \
    X(MPIABI_Info_get) X(MPIABI_Info_get_valuelen) X(MPIABI_Info_get_nkeys) X(MPIABI_Info_get_nthkey) \
    X(MPIABI_Info_dup) X(MPIABI_Info_free) X(MPIABI_Comm_spawn) X(MPIABI_Comm_get_parent) \
    X(MPIABI_Comm_spawn_multiple) X(MPIABI_Open_port) X(MPIABI_Close_port) X(MPIABI_Comm_accept) \
    X(MPIABI_Comm_connect) X(MPIABI_Publish_name) X(MPIABI_Unpublish_name) X(MPIABI_Lookup_name) \
    X(MPIABI_Comm_disconnect) X(MPIABI_Comm_join) X(MPIABI_Win_create) X(MPIABI_Win_allocate) \
    X(MPIABI_Win_allocate_shared) X(MPIABI_Win_shared_query) X(MPIABI_Win_create_dynamic) X(MPIABI_Win_attach) \
    X(MPIABI_Win_detach) X(MPIABI_Win_free) X(MPIABI_Win_get_group) X(MPIABI_Win_set_info) X(MPIABI_Win_get_info) \
    X(MPIABI_Put) X(MPIABI_Get) X(MPIABI_Accumulate) X(MPIABI_Get_accumulate) X(MPIABI_Fetch_and_op) \
    X(MPIABI_Compare_and_swap) X(MPIABI_Rput) X(MPIABI_Rget) X(MPIABI_Raccumulate) X(MPIABI_Rget_accumulate) \
    X(MPIABI_Win_fence) X(MPIABI_Win_start) X(MPIABI_Win_complete) X(MPIABI_Win_post) X(MPIABI_Win_wait) \
    X(MPIABI_Win_test) X(MPIABI_Win_lock) X(MPIABI_Win_lock_all) X(MPIABI_Win_unlock) X(MPIABI_Win_unlock_all) \
    X(MPIABI_Win_flush) X(MPIABI_Win_flush_all) X(MPIABI_Win_flush_local) X(MPIABI_Win_flush_local_all) \
    X(MPIABI_Win_sync) X(MPIABI_Grequest_start) X(MPIABI_Grequest_complete) X(MPIABI_Status_set_elements) \
    X(MPIABI_Status_set_elements_x) X(MPIABI_Status_set_cancelled) X(MPIABI_Query_thread) X(MPIABI_File_open) \
    X(MPIABI_File_close) X(MPIABI_File_delete) X(MPIABI_File_set_size) X(MPIABI_File_preallocate) \
    X(MPIABI_File_get_size) X(MPIABI_File_get_group) X(MPIABI_File_get_amode) X(MPIABI_File_set_info) \
    X(MPIABI_File_get_info) X(MPIABI_File_set_view) X(MPIABI_File_get_view) X(MPIABI_File_read_at) \
    X(MPIABI_File_read_at_all) X(MPIABI_File_write_at) X(MPIABI_File_write_at_all) X(MPIABI_File_iread_at) \
    X(MPIABI_File_iread_at_all) X(MPIABI_File_iwrite_at) X(MPIABI_File_iwrite_at_all) X(MPIABI_File_read) \
    X(MPIABI_File_read_all) X(MPIABI_File_write) X(MPIABI_File_write_all) X(MPIABI_File_iread) \
    X(MPIABI_File_iread_all) X(MPIABI_File_iwrite) X(MPIABI_File_iwrite_all) X(MPIABI_File_seek) \
    X(MPIABI_File_get_position) X(MPIABI_File_get_byte_offset) X(MPIABI_File_read_shared) \
    X(MPIABI_File_write_shared) X(MPIABI_File_iread_shared) X(MPIABI_File_iwrite_shared) X(MPIABI_File_read_ordered) \
    X(MPIABI_File_write_ordered) X(MPIABI_File_seek_shared) X(MPIABI_File_get_position_shared) \
    X(MPIABI_File_read_at_all_begin) X(MPIABI_File_read_at_all_end) X(MPIABI_File_write_at_all_begin) \
    X(MPIABI_File_write_at_all_end) X(MPIABI_File_read_all_begin) X(MPIABI_File_read_all_end) \
    X(MPIABI_File_write_all_begin) X(MPIABI_File_write_all_end) X(MPIABI_File_read_ordered_begin) \
    X(MPIABI_File_read_ordered_end) X(MPIABI_File_write_ordered_begin) X(MPIABI_File_write_ordered_end) \
    X(MPIABI_File_get_type_extent) X(MPIABI_Register_datarep) X(MPIABI_File_set_atomicity) \
    X(MPIABI_File_get_atomicity) X(MPIABI_File_sync) X(MPIABI_Type_create_f90_real) \
    X(MPIABI_Type_create_f90_complex) X(MPIABI_Type_create_f90_integer) X(MPIABI_Type_match_size) X(MPIABI_Comm_f2c) \
    X(MPIABI_Comm_c2f) X(MPIABI_Type_f2c) X(MPIABI_Type_c2f) X(MPIABI_Group_f2c) X(MPIABI_Group_c2f) \
    X(MPIABI_Request_f2c) X(MPIABI_Request_c2f) X(MPIABI_File_f2c) X(MPIABI_File_c2f) X(MPIABI_Win_f2c) \
    X(MPIABI_Win_c2f) X(MPIABI_Op_f2c) X(MPIABI_Op_c2f) X(MPIABI_Info_f2c) X(MPIABI_Info_c2f) \
    X(MPIABI_Errhandler_f2c) X(MPIABI_Errhandler_c2f) X(MPIABI_Message_f2c) X(MPIABI_Message_c2f) \
    X(MPIABI_Status_f2c) X(MPIABI_Status_c2f) X(MPIXABI_Query_cuda_support) X(MPIXABI_Query_hip_support) \
    X(MPIXABI_Query_rocm_support) X(MPIXABI_Query_ze_support)

/* The constants have int or pointer type in C; MPItrampoline reads the first bytes of each. */
enum shmring_mpi_value {
#define SHMRING_MPI_VALUE(name) SHMRING_MPI_##name,
    SHMRING_MPI_CONSTANTS(SHMRING_MPI_VALUE) SHMRING_MPI_NCONSTANTS
};

/* In _mpi.pyx, with the GIL: connects this process; -1 with an exception. */
int shmring_mpi_start(void);

extern const int mpiabi_version_major, mpiabi_version_minor, mpiabi_version_patch;
extern const int mpiwrapper_version_major, mpiwrapper_version_minor, mpiwrapper_version_patch;
const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10, mpiwrapper_version_patch = 0;
/* Called once the library is opened. */
static int shmring_mpi_is_opened = 0;
void mpiwrapper_export_fortran_constants_(void) { shmring_mpi_is_opened = 1; }

#define SHMRING_MPI_CONSTANT(name)                                                                                     \
    extern const uintptr_t MPIABI_##name;                                                                              \
    const uintptr_t MPIABI_##name = SHMRING_MPI_##name;
SHMRING_MPI_CONSTANTS(SHMRING_MPI_CONSTANT)

static int shmring_mpi_fail(const char *text);

#define SHMRING_MPI_STUB(name)                                                                                         \
    int name(void) { return shmring_mpi_fail(#name ": shmring has only those functions of MPI that JAX calls"); }
SHMRING_MPI_UNUSED(SHMRING_MPI_STUB)

/* jaxlib has opened this file, perhaps before Python: its module state must be there before any other function runs. */
static int shmring_mpi_is_imported = 0;

int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *module = PyImport_ImportModule("shmring.jax._mpi");
    int code = -1;
    (void)argc, (void)argv;
    *provided = required;
    Py_XDECREF(module);
    if (module && !shmring_mpi_is_imported)
        PyErr_SetString(PyExc_ImportError, "MPITRAMPOLINE_LIB names the library of another shmring than the one that "
                                           "Python imports; set it by shmring.jax or `shmring run --jax` alone");
    else if (module)
        code = shmring_mpi_start();
    PyGILState_Release(state); /* XLA ignores the code; an exception that stays set is raised as Init returns */
    return code ? SHMRING_MPI_ERR_OTHER : SHMRING_MPI_SUCCESS;
}

/* Operations of all threads. A sum of counts is exact once it no longer changes, which is all that is asked of it. */
static uint64_t shmring_mpi_nbegun = 0, shmring_mpi_nended = 0;

static void shmring_mpi_count(uint64_t *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }
static uint64_t shmring_mpi_counted(const uint64_t *n) { return __atomic_load_n(n, __ATOMIC_RELAXED); }

/* The text of the last error of a thread. */
static _Thread_local char shmring_mpi_text[1024];

static int shmring_mpi_fail_as(const char *name, const char *text) {
    snprintf(shmring_mpi_text, sizeof(shmring_mpi_text), "shmring.%s: %s", name, text);
    return SHMRING_MPI_ERR_OTHER;
}

static int shmring_mpi_fail(const char *text) {
    snprintf(shmring_mpi_text, sizeof(shmring_mpi_text), "%s", text);
    return SHMRING_MPI_ERR_OTHER;
}

#endif
