/*
 * haul.h: RDMA verbs, with or without an RNIC.
 *
 * The words are those of libibverbs and librdmacm: a device is opened as a context; it makes
 * protection domains, memory regions, completion queues and queue pairs; work requests are posted
 * in batches and come back as completions. How the pieces go together is shown in c/examples; how
 * to compile and install is in docs/write-rdma-programs.md.
 *
 * Results
 *   A function that returns int returns 0 (HAUL_OK) or a count when it has done its work, and a
 *   negative HAUL_ERR_... when it has done nothing; each lists its own errors. Any of them may
 *   return HAUL_ERR_INVALID (NULL where an object must be, an array that is NULL, a structure
 *   without its size) and HAUL_ERR_INTERNAL (a bug of the library, caught). haul_last_error
 *   describes what was wrong and what to do about it. A function that makes an object puts NULL
 *   into *out when it fails.
 *
 * Waiting
 *   There are no callbacks, and the library calls nothing of the program. Everything that can be
 *   waited for is polled (..._poll: 0 when there is nothing), waited for (..._wait: 0 when the time
 *   is over), or watched through a file descriptor that becomes readable (..._fd: for poll, epoll
 *   or an event loop). Except for the ..._wait functions and haul_qp_connect_endpoint no function
 *   waits for a peer. Timeouts are in nanoseconds, negative is for ever. File descriptors belong to
 *   the library: watch them, never read, write or close them. They are close-on-exec.
 *
 * Threads
 *   Every function may be called from every thread, also for one object at the same time, with one
 *   exception: the function that ends an object (..._destroy, haul_close, haul_mr_dereg,
 *   haul_accept and haul_reject for their request) must be the last one that uses it. After fork()
 *   the child must not use what its parent has made; it may exec, or open a context of its own.
 *   Functions are not async-signal-safe.
 *
 * Objects
 *   They may be ended in any order: each keeps alive what it needs. A queue pair of a closed
 *   context goes on working until it is destroyed itself. To end NULL does nothing.
 *
 * Structures
 *   Those that begin with a size may grow in later versions. Begin with the initialiser of the same
 *   name in capitals and _INIT, which sets the size and the defaults: haul_qp_init init =
 *   HAUL_QP_INIT; A program that was compiled with an older header works with a newer library. In a
 *   field called reserved there must be 0.
 */
#ifndef HAUL_H
#define HAUL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Zeros for an array or structure inside an initialiser. */
#ifdef __cplusplus
#define HAUL_EMPTY {}
extern "C" {
#else
#define HAUL_EMPTY { 0 }
#endif

/* ---- Version --------------------------------------------------------------------------------- */

/* What this header describes: major version << 16 | minor version. */
#define HAUL_ABI_VERSION 0x00010004

/* What the library implements. It serves this program if the upper 16 bits are equal and the lower
 * ones not smaller. */
uint32_t haul_abi_version(void);

/* The version of Longhaul, "0.1.0". Static. */
const char *haul_version(void);

/* ---- Errors ---------------------------------------------------------------------------------- */

enum haul_status {
  HAUL_OK = 0,
  HAUL_ERR_UNSUPPORTED = -1,  /* the device or its provider does not have this */
  HAUL_ERR_INVALID = -2,      /* an argument is invalid, or does not fit the others */
  HAUL_ERR_FULL = -3,         /* the queue is full: poll completions, then go on */
  HAUL_ERR_STATE = -4,        /* not in this state of the queue pair */
  HAUL_ERR_EXHAUSTED = -5,    /* a limit of the device, process or machine is reached */
  HAUL_ERR_BUSY = -6,         /* something else still uses it */
  HAUL_ERR_CQ_OVERFLOW = -7,  /* completions were lost; the queue pairs of the queue are in error */
  HAUL_ERR_OS = -8,           /* the operating system refused: haul_last_errno */
  HAUL_ERR_TIMED_OUT = -9,    /* the peer did not answer in time */
  HAUL_ERR_NO_DEVICE = -10,   /* there is no device of this name */
  HAUL_ERR_INTERNAL = -11,    /* a bug of the library */
  HAUL_ERR_ENDED = -12,       /* the end of a byte stream, behind all of it */
  HAUL_ERR_DISCONNECTED = -13 /* a byte stream has ended in error */
};

/* An opened device. */
typedef struct haul_context haul_context;

/* A few words for a status. Static, never NULL. */
const char *haul_strerror(int status);

/*
 * The last failure of a call with this context or an object made from it, or with NULL of a call
 * without one (haul_open, haul_device_list_..., a NULL object): "function: what was wrong; what to
 * do". Copies as much as fits into buffer, with a NUL behind it (nothing if len is 0), and returns
 * the length of the whole text without the NUL; 0 if nothing has failed yet. Successes do not erase
 * it. Threads that share a context share it too.
 */
size_t haul_last_error(haul_context *context, char *buffer, size_t len);

/* The errno of the same failure: that of the operating system if it was asked, else the nearest. 0
 * for none. */
int haul_last_errno(haul_context *context);

/* ---- Devices --------------------------------------------------------------------------------- */

enum haul_transport {
  HAUL_TRANSPORT_OTHER = 0,
  HAUL_TRANSPORT_IWARP = 1,      /* iWARP over TCP: a Send or Write is complete when the transport has taken it */
  HAUL_TRANSPORT_IWARP_UDT = 2,  /* iWARP over UDT: complete when the peer's transport has acknowledged it; the peer
                                    may still reject it and end the connection */
  HAUL_TRANSPORT_ROCE = 3,       /* RDMA over Ethernet: complete when the peer's device has acknowledged it */
  HAUL_TRANSPORT_INFINIBAND = 4, /* the same */
  HAUL_TRANSPORT_IWARP_UDP = 5   /* iWARP in UDP datagrams: UD is complete when it is handed to the network, RD when the peer has
                                    acknowledged it */
};

/* Optional abilities, haul_device_info.caps. */
#define HAUL_CAP_ATOMIC (1u << 0)           /* compare-and-swap, fetch-and-add */
#define HAUL_CAP_SRQ (1u << 1)              /* shared receive queues */
#define HAUL_CAP_SEND_WITH_INV (1u << 2)    /* Send with Invalidate, local invalidation */
#define HAUL_CAP_WRITE_WITH_IMM (1u << 3)   /* RDMA Write with immediate data; RC and RD */
#define HAUL_CAP_SEND_WITH_IMM (1u << 4)    /* Send with immediate data and payload; over iWARP, to Longhaul peers */
#define HAUL_CAP_UD (1u << 5)               /* unreliable datagrams */
#define HAUL_CAP_ZERO_BASED (1u << 6)       /* memory regions that count from zero */
#define HAUL_CAP_REMOTE_PLACEMENT (1u << 7) /* HAUL_QP_REMOTE_PLACEMENT can be chosen */
#define HAUL_CAP_ENDPOINTS (1u << 8)        /* haul_qp_connect_endpoint */
#define HAUL_CAP_RD (1u << 9)               /* reliable datagrams */
#define HAUL_CAP_RC (1u << 10)              /* reliable connections */
#define HAUL_CAP_WRITE_RECORD (1u << 11)    /* RDMA Write-Record */
#define HAUL_CAP_STREAM (1u << 12)          /* byte streams: haul_stream_connect */
#define HAUL_CAP_RATE_LIMIT (1u << 13)      /* haul_qp_init.max_rate_bps */

/* A device and its limits. */
typedef struct haul_device_info {
  uint32_t size;
  uint32_t transport;          /* enum haul_transport */
  uint64_t caps;               /* HAUL_CAP_... */
  char name[64];               /* "soft-tcp", "rxe0" */
  char provider[16];           /* "soft", "ibv" */
  uint32_t max_qp;             /* queue pairs */
  uint32_t max_qp_wr;          /* work requests in a send or receive queue */
  uint32_t max_sge;            /* pieces of a work request, at most HAUL_SGE_MAX */
  uint32_t max_inline;         /* bytes of inline data, at most HAUL_INLINE_MAX */
  uint32_t max_cqe;            /* entries of a completion queue */
  uint32_t max_mr;             /* memory regions */
  uint64_t max_mr_size;        /* bytes of a memory region */
  uint64_t max_message;        /* bytes of a message */
  uint32_t max_rd_atomic;      /* reads and atomics that a queue pair answers at once (IRD) */
  uint32_t max_init_rd_atomic; /* reads and atomics that a queue pair has outstanding (ORD) */
  uint32_t max_private_data;   /* bytes of private data, at most HAUL_PRIVATE_DATA_MAX */
  uint32_t reserved;
} haul_device_info;
#define HAUL_DEVICE_INFO_INIT { sizeof(haul_device_info), 0, 0, HAUL_EMPTY, HAUL_EMPTY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* A provider of RDMA devices. */
typedef struct haul_provider_info {
  uint32_t size;
  uint32_t devices; /* how many it has */
  char name[16];    /* "soft", "ibv" */
  char reason[256]; /* why it has none: what is missing; empty if nothing is */
} haul_provider_info;
#define HAUL_PROVIDER_INFO_INIT { sizeof(haul_provider_info), 0, HAUL_EMPTY, HAUL_EMPTY }

/* The devices of this machine as they were when the list was made. */
typedef struct haul_device_list haul_device_list;

/* Looks for devices. Providers that cannot work here are no error: haul_device_list_provider
 * returns why. */
int haul_device_list_create(haul_device_list **out);
void haul_device_list_destroy(haul_device_list *list);

/* Describes the device of this index, from 0: 1, or 0 behind the last one. Errors: HAUL_ERR_OS. */
int haul_device_list_device(haul_device_list *list, size_t index, haul_device_info *out);

/* Describes the provider of this index, from 0: 1, or 0 behind the last one. */
int haul_device_list_provider(haul_device_list *list, size_t index, haul_provider_info *out);

/* Flags of haul_open_options. */
#define HAUL_OPEN_NO_CRC (1u << 0) /* do not ask for CRCs of iWARP; off only if the peer does not either */
#define HAUL_OPEN_STRICT (1u << 1) /* check CRCs before bytes are placed, for the price of a copy */
#define HAUL_OPEN_ENGINE (1u << 2) /* only the engine threads send and receive, not the threads that post, poll and wait: data costs the
                                      application no processor time, and each round trip two wake-ups more. A request that its
                                      connection refuses when the engine takes it completes with an error. Byte streams always
                                      work so */

/* How the software provider is to work; others ignore it. */
typedef struct haul_open_options {
  uint32_t size;
  uint32_t flags;         /* HAUL_OPEN_... */
  uint32_t shards;        /* engine threads; 0: as many as it finds right */
  uint32_t fpdu_max;      /* bytes of the longest FPDU towards other Longhaul ends, 512 to 65536; 0: its choice */
  uint64_t socket_buffer; /* bytes of the sockets' buffers; 0: the kernel's choice */
  const char *pcap;       /* writes what is sent and received to this file, as a packet capture; NULL: does not */
  uint64_t rate_bps;      /* sends at this rate over UDT, wire bits per second, whatever the path does: for a circuit that is the
                             user's; 0: finds the rate */
  uint64_t connect_timeout_ns; /* how long an attempt to connect may take; 0: 30 s over TCP, 10 s over UDT */
  uint64_t close_timeout_ns;   /* how long a connection that this end disconnects, or whose queue pair was destroyed, waits for the
                                  peer to close; 0: 5 s */
  uint64_t peer_timeout_ns;    /* how long a peer may answer nothing, idle or not, before its connection is lost, at least 1 s;
                                  0: 30 s */
  const char *protect;         /* encrypts and authenticates connections over TCP and UDT, and refuses peers that do not:
                                  "key:FILE", a key file that both ends have; "key:FILE,PUBLIC-KEY,...", an own key file and the
                                  peers' public keys; "cert:CHAIN,KEY,ROOTS[,NAME]", certificates in PEM files. `haul key`
                                  makes keys. NULL: plain. Also of byte streams, but for haul_stream_rendezvous */
  const char *engine_cpus;     /* processors of the engine threads and of byte streams: "1", "2,3", "4-7"; all of them must be
                                  available to the process. Needs HAUL_OPEN_ENGINE. NULL: those of the thread that makes them */
} haul_open_options;
#define HAUL_OPEN_OPTIONS_INIT { sizeof(haul_open_options), 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL }

/*
 * Opens a device: the one of this name, or the first of the provider of this name ("soft" needs
 * neither hardware nor privileges), or with NULL the first of the list, a software one. options may
 * be NULL. Errors: HAUL_ERR_NO_DEVICE; HAUL_ERR_INVALID for options that cannot be; HAUL_ERR_OS: no
 * permission, no file descriptors.
 */
int haul_open(const char *name, const haul_open_options *options, haul_context **out);

/* Closes it when everything that was made from it is gone as well. */
void haul_close(haul_context *context);

/*
 * Returns in out how many connections this context has refused: peers without protection, without
 * an admitted key or certificate, and those that sent something else. Errors: HAUL_ERR_UNSUPPORTED
 * if it was opened without protect.
 */
int haul_refused_peers(haul_context *context, uint64_t *out);

/* Describes the device. Errors: HAUL_ERR_OS. */
int haul_query(haul_context *context, haul_device_info *out);

/* ---- Asynchronous events --------------------------------------------------------------------- */

enum haul_async_type {
  HAUL_ASYNC_CQ_ERROR = 1,          /* the completion queue of this token has overflowed */
  HAUL_ASYNC_QP_FATAL = 2,          /* the queue pair is in error and had no work request to report it with */
  HAUL_ASYNC_QP_ACCESS_ERROR = 3,   /* the peer has violated the rights of a memory region */
  HAUL_ASYNC_COMM_ESTABLISHED = 4,  /* the first message has arrived before the connection's own event */
  HAUL_ASYNC_SRQ_LIMIT_REACHED = 5, /* the shared receive queue of this token has fallen below its limit */
  HAUL_ASYNC_DEVICE_FATAL = 6,      /* the device is gone */
  HAUL_ASYNC_DATAGRAM_REFUSED = 7,  /* a datagram service dropped an unexpected datagram: haul_qp_datagram_statistics */
  HAUL_ASYNC_DATAGRAM_UNDELIVERED = 8, /* the network reported that datagrams of a service did not arrive: the same */
  HAUL_ASYNC_OTHER = 255
};

typedef struct haul_async_event {
  uint32_t size;
  uint32_t type;   /* enum haul_async_type */
  uint32_t qp_num; /* for events of queue pairs */
  uint32_t reserved;
  uint64_t token;  /* for events of completion queues and shared receive queues */
} haul_async_event;
#define HAUL_ASYNC_EVENT_INIT { sizeof(haul_async_event), 0, 0, 0, 0 }

/* Readable while there are asynchronous events. Errors: HAUL_ERR_UNSUPPORTED. */
int haul_async_fd(haul_context *context);

/* Takes an asynchronous event: 1, or 0 if there is none. Errors: HAUL_ERR_UNSUPPORTED. */
int haul_async_poll(haul_context *context, haul_async_event *out);

/* ---- Peers ----------------------------------------------------------------------------------- */

/* A queue pair of a datagram service somewhere else: what an address handle and a queue pair number
 * are together. */
typedef struct haul_peer {
  uint8_t addr[16];     /* IPv6, or IPv4 mapped into it */
  uint32_t scope_id;    /* of a link-local IPv6 address; else 0 */
  uint32_t qp_num;      /* 24 bits; HAUL_PEER_GROUP: every one that is attached */
  uint16_t port;        /* UDP, a number in this machine's byte order */
  uint16_t reserved[3];
} haul_peer;

/* The queue pair number that stands for every member of a multicast group, or all hosts of a
 * broadcast address. */
#define HAUL_PEER_GROUP 0xffffffu

/* In haul_mr_init.peers: any queue pair at that address. */
#define HAUL_PEER_ANY_QP 0xffffffffu

/* The queue pair qp_num at a sockaddr_in or sockaddr_in6. Errors: HAUL_ERR_INVALID for another kind
 * of address, no port, or a number of more than 24 bits. */
int haul_peer_from_address(const struct sockaddr *address, socklen_t address_len, uint32_t qp_num, haul_peer *out);

/* Its address, as getsockname: *len is the room at out, then the length of the address. */
int haul_peer_address(const haul_peer *peer, struct sockaddr *out, socklen_t *len);

/* ---- Protection domains and memory regions --------------------------------------------------- */

/* A protection domain: queue pairs reach the memory regions of their own domain only. */
typedef struct haul_pd haul_pd;

/* Errors: HAUL_ERR_EXHAUSTED. */
int haul_pd_create(haul_context *context, haul_pd **out);
void haul_pd_destroy(haul_pd *pd);

/* Rights of a memory region. Sending from it is always allowed. */
#define HAUL_ACCESS_LOCAL_WRITE (1u << 0)       /* receives, and results of reads and atomics */
#define HAUL_ACCESS_REMOTE_WRITE (1u << 1)      /* the peer's RDMA Writes; asks for LOCAL_WRITE too */
#define HAUL_ACCESS_REMOTE_READ (1u << 2)       /* the peer's RDMA Reads */
#define HAUL_ACCESS_REMOTE_ATOMIC (1u << 3)     /* the peer's atomics; asks for LOCAL_WRITE too */
#define HAUL_ACCESS_REMOTE_INVALIDATE (1u << 4) /* the peer may end it by Send with Invalidate */
#define HAUL_ACCESS_ZERO_BASED (1u << 31)       /* its addresses count from 0, and reveal nothing of this process to the peer */

/* A memory region: bytes with keys and rights. */
typedef struct haul_mr haul_mr;

typedef struct haul_mr_info {
  uint32_t size;
  uint32_t access; /* HAUL_ACCESS_... */
  uint32_t lkey;   /* for the work requests of this end */
  uint32_t rkey;   /* for the peer */
  uint64_t addr;   /* the address of its first byte, for work requests of both ends */
  uint64_t len;    /* bytes */
  void *ptr;       /* its first byte in this process */
} haul_mr_info;
#define HAUL_MR_INFO_INIT { sizeof(haul_mr_info), 0, 0, 0, 0, 0, NULL }

/*
 * Registers len bytes at start, which stay the caller's: they must stay mapped until haul_mr_dereg
 * has returned. Nothing is copied, now or later. Addresses in it are those of this process, unless
 * it is zero-based. From the posting of a work request to its completion its bytes belong to the
 * request, and bytes that a peer has rights to may change at any time: do not read them before a
 * completion reports that they are there.
 * Errors: HAUL_ERR_INVALID for no bytes or rights that contradict each other; HAUL_ERR_EXHAUSTED;
 * HAUL_ERR_OS: the memory cannot be pinned.
 */
int haul_mr_reg(haul_pd *pd, void *start, size_t len, uint32_t access, haul_mr **out);

/* The same; the address of its first byte is iova. Errors: also HAUL_ERR_INVALID for addresses that
 * wrap. */
int haul_mr_reg_iova(haul_pd *pd, void *start, size_t len, uint64_t iova, uint32_t access, haul_mr **out);

/* Allocates len bytes, zeroed, on huge pages where there are some, and registers them;
 * haul_mr_query returns where they are. haul_mr_dereg gives them back. Errors: as haul_mr_reg, and
 * HAUL_ERR_OS: no memory. */
int haul_mr_alloc(haul_pd *pd, size_t len, uint32_t access, haul_mr **out);

/* Which sources may write to, or read from, a region by datagrams. What its rights forbid stays
 * forbidden. */
enum haul_sources {
  HAUL_SOURCES_VALIDATED = 0, /* those that have shown that they receive at the address they send from */
  HAUL_SOURCES_ANY = 1,       /* any for writes; for reads and atomics as HAUL_SOURCES_VALIDATED */
  HAUL_SOURCES_PEERS = 2      /* those of haul_mr_init.peers */
};

typedef struct haul_mr_init {
  uint32_t size;
  uint32_t access;        /* HAUL_ACCESS_... */
  void *start;            /* as haul_mr_reg; NULL: allocated, as haul_mr_alloc */
  size_t len;             /* bytes */
  uint64_t iova;          /* the address of its first byte; 0: as haul_mr_reg */
  const haul_peer *peers; /* for HAUL_SOURCES_PEERS: addresses, their ports do not count; read during the call only */
  uint32_t peer_count;
  uint32_t sources;       /* enum haul_sources */
} haul_mr_init;
/* The sources that haul_mr_reg has: validated ones. */
#define HAUL_MR_INIT { sizeof(haul_mr_init), 0, NULL, 0, 0, NULL, 0, HAUL_SOURCES_VALIDATED }

/* Registers memory and sets which sources of datagrams reach it. Errors: as haul_mr_reg_iova and
 * haul_mr_alloc. */
int haul_mr_create(haul_pd *pd, const haul_mr_init *init, haul_mr **out);

int haul_mr_query(haul_mr *mr, haul_mr_info *out);

/* Takes the rights away and ends it. When it has returned, nobody touches the bytes any more: work
 * requests and peers that try, fail. NULL is 0. Errors: HAUL_ERR_OS of a device; it is ended all
 * the same. */
int haul_mr_dereg(haul_mr *mr);

/* ---- Completions ----------------------------------------------------------------------------- */

/* Where armed completion queues leave events. */
typedef struct haul_comp_channel haul_comp_channel;

/* Errors: HAUL_ERR_OS: no file descriptors. */
int haul_comp_channel_create(haul_context *context, haul_comp_channel **out);
void haul_comp_channel_destroy(haul_comp_channel *channel);

/* Readable while there are events. */
int haul_comp_channel_fd(haul_comp_channel *channel);

/* Takes an event: 1 and the token of its completion queue, or 0 if there is none. Errors:
 * HAUL_ERR_OS. */
int haul_comp_channel_poll(haul_comp_channel *channel, uint64_t *token);

/* The same, waiting for one until the time is over. */
int haul_comp_channel_wait(haul_comp_channel *channel, int64_t timeout_ns, uint64_t *token);

enum haul_wc_status { /* the numbers of libibverbs */
  HAUL_WC_SUCCESS = 0,
  HAUL_WC_LOC_LEN_ERR = 1,       /* RDMA devices: a receive buffer is too short, or a length does not fit to the operation; RC of
                                    the software provider flushes such a receive */
  HAUL_WC_LOC_QP_OP_ERR = 2,     /* the queue pair cannot do this */
  HAUL_WC_LOC_PROT_ERR = 4,      /* a key of this end is not valid, or does not have the right or the range */
  HAUL_WC_WR_FLUSH_ERR = 5,      /* the queue pair was in error when its turn came */
  HAUL_WC_MW_BIND_ERR = 6,
  HAUL_WC_BAD_RESP_ERR = 7,      /* the peer's response is invalid */
  HAUL_WC_LOC_ACCESS_ERR = 8,    /* the peer accessed this end's memory without the right to */
  HAUL_WC_REM_INV_REQ_ERR = 9,   /* the peer refused it as invalid */
  HAUL_WC_REM_ACCESS_ERR = 10,   /* the peer refused the key: not the right or the range */
  HAUL_WC_REM_OP_ERR = 11,       /* the peer could not do it */
  HAUL_WC_RETRY_EXC_ERR = 12,    /* the peer did not answer */
  HAUL_WC_RNR_RETRY_EXC_ERR = 13, /* the peer had no receive request for too long */
  HAUL_WC_REM_ABORT_ERR = 16,
  HAUL_WC_FATAL_ERR = 19,
  HAUL_WC_RESP_TIMEOUT_ERR = 20,
  HAUL_WC_GENERAL_ERR = 21
};

enum haul_wc_opcode { /* the numbers of libibverbs; it has no Write-Record */
  HAUL_WC_SEND = 0,
  HAUL_WC_RDMA_WRITE = 1,
  HAUL_WC_RDMA_READ = 2,
  HAUL_WC_COMPARE_SWAP = 3,
  HAUL_WC_FETCH_ADD = 4,
  HAUL_WC_LOCAL_INV = 6,
  HAUL_WC_WRITE_RECORD = 64,
  HAUL_WC_RECV = 128,               /* by a Send */
  HAUL_WC_RECV_RDMA_WITH_IMM = 129, /* by an RDMA Write with immediate data */
  HAUL_WC_RECV_WRITE_RECORD = 192,  /* a Write-Record of a peer: haul_qp_take_record with wr_id returns what was placed */
  HAUL_WC_OTHER = 255
};

/* Flags of haul_wc. */
#define HAUL_WC_WITH_IMM (1u << 0) /* data is the immediate data, a number in this machine's byte order */
#define HAUL_WC_WITH_INV (1u << 1) /* data is the rkey of the memory region that the peer has ended */
#define HAUL_WC_WITH_SRC (1u << 2) /* src_... name the sender: haul_wc_peer */

/* The end of a work request. Fields behind status mean something with HAUL_WC_SUCCESS only, except
 * qp_num and vendor_err. */
typedef struct haul_wc {
  uint64_t wr_id;
  uint32_t status;     /* enum haul_wc_status */
  uint32_t opcode;     /* enum haul_wc_opcode */
  uint32_t byte_len;   /* bytes received or read, of a Write-Record those that are valid, of HAUL_WC_RECV_RDMA_WITH_IMM those that
                          the peer has written (0 where an iWARP end other than Longhaul's wrote); not defined for sends and writes */
  uint32_t qp_num;     /* the queue pair */
  uint32_t flags;      /* HAUL_WC_WITH_... */
  uint32_t data;       /* as flags define it */
  uint32_t src_qp;     /* the sender, for datagrams */
  uint32_t vendor_err; /* the provider's own number of the error */
  uint8_t src_addr[16]; /* as in haul_peer */
  uint32_t src_scope_id;
  uint16_t src_port;
  uint16_t reserved;
} haul_wc;

/* Who sent what this completion is of, for an answer: 1, or 0 if it names none (connections, and
 * requests of this end). */
int haul_wc_peer(const haul_wc *wc, haul_peer *out);

/* A few words for a status of a completion. Static, never NULL. */
const char *haul_wc_status_str(uint32_t status);

/* A completion queue. */
typedef struct haul_cq haul_cq;

/*
 * A completion queue for at least so many entries: as many as work requests can be outstanding on
 * it. Its events appear on channel, which may be NULL, as token. Errors: HAUL_ERR_INVALID for no or
 * too many entries, or a channel of another context; HAUL_ERR_OS.
 */
int haul_cq_create(haul_context *context, uint32_t entries, haul_comp_channel *channel, uint64_t token, haul_cq **out);
void haul_cq_destroy(haul_cq *cq);

/* Takes up to len completions: how many. Makes progress for the software provider: calling it in a
 * loop is the fastest way. Errors: HAUL_ERR_CQ_OVERFLOW once completions were lost. */
int haul_cq_poll(haul_cq *cq, haul_wc *out, uint32_t len);

/* The same, waiting for the first one until the time is over: busily for a moment, then asleep. */
int haul_cq_wait(haul_cq *cq, int64_t timeout_ns, haul_wc *out, uint32_t len);

/*
 * Asks for one event on the channel: for the next completion, or (solicited_only not 0) the next
 * receive that the peer has marked as solicited or the next error. Completions that are there
 * already cause none. So: arm, poll until it is empty, then wait for the channel; after its event,
 * the same again. Errors: HAUL_ERR_INVALID for a queue without a channel.
 */
int haul_cq_arm(haul_cq *cq, int solicited_only);

/* ---- Queue pairs ----------------------------------------------------------------------------- */

/* A shared receive queue. */
typedef struct haul_srq haul_srq;

/* A queue pair. */
typedef struct haul_qp haul_qp;

enum haul_qp_type {
  HAUL_QPT_RC = 0, /* reliable connection */
  HAUL_QPT_UD = 1, /* unreliable datagram */
  HAUL_QPT_RD = 2  /* reliable datagram */
};

/* Flags of haul_qp_init. */
#define HAUL_QP_SIGNAL_ALL (1u << 0)       /* every send work request reports its completion */
#define HAUL_QP_REMOTE_PLACEMENT (1u << 1) /* a signalled Send or Write is complete when its bytes are placed at the peer, not when
                                              the transport has taken them; costs iWARP a round trip and a place of ORD each */

/* How the target of a Write-Record learns what was placed. */
enum haul_record_mode {
  HAUL_RECORDS_AGGREGATE = 0, /* a completion for each message, when its record closes */
  HAUL_RECORDS_PER_CHUNK = 1, /* a completion for each segment, as it is placed */
  HAUL_RECORDS_QUERY = 2      /* no completions: haul_qp_records */
};

/* Flags of haul_datagram_init. */
#define HAUL_DATAGRAM_MULTICAST_LOOP (1u << 0)   /* members on this host receive what this queue pair sends to a group */
#define HAUL_DATAGRAM_GROUP_WRITES (1u << 1)     /* Write-Records may come from groups */
#define HAUL_DATAGRAM_PEER_ERROR_FATAL (1u << 2) /* RD: an unreachable peer ends the queue pair, not only the work for that peer */
#define HAUL_DATAGRAM_RECEIVES_IN_ORDER (1u << 3) /* RD: only messages of which nothing before is missing are given receives */

/* What only datagram services need. */
typedef struct haul_datagram_init {
  uint32_t size;
  uint32_t flags;           /* HAUL_DATAGRAM_... */
  uint32_t records;         /* enum haul_record_mode */
  uint16_t path_mtu;        /* bytes of an IP packet that reach every peer; 0: those of the route, at most 1500 */
  uint8_t multicast_ttl;    /* hops that packets to multicast groups may take */
  uint8_t tail_repeats;     /* the last segment of a message of more than eight is sent so many times more (UD) */
  uint64_t max_rate;        /* payload bytes per second to one peer, at most (UD); 0: as fast as the machine can */
  uint64_t read_timeout_ns; /* how long a UD read waits before it requests missing data again while no round trip is known; 0: 100 ms */
  uint8_t retries;          /* how often a read asks again, or RD retransmits without an answer, before it gives up */
  uint8_t reserved[7];
  const void *seal_key;     /* HAUL_SEAL_KEY_LEN bytes that nobody can guess, the same at all ends: every datagram is encrypted and
                               authenticated, others are dropped; NULL: none is */
} haul_datagram_init;
#define HAUL_DATAGRAM_INIT { sizeof(haul_datagram_init), 0, HAUL_RECORDS_AGGREGATE, 0, 1, 1, 0, 0, 8, HAUL_EMPTY, NULL }
#define HAUL_SEAL_KEY_LEN 32

typedef struct haul_qp_init {
  uint32_t size;
  uint32_t type;          /* enum haul_qp_type */
  uint32_t flags;         /* HAUL_QP_... */
  uint32_t max_send_wr;   /* send work requests that are posted and whose completions are not polled: HAUL_SEND_SIGNALED */
  uint32_t max_recv_wr;   /* receive work requests, the same; not used with a shared receive queue */
  uint32_t max_send_sge;  /* pieces of a send work request */
  uint32_t max_recv_sge;  /* pieces of a receive work request */
  uint32_t max_inline;    /* bytes of inline data */
  const haul_cq *send_cq; /* where sends complete */
  const haul_cq *recv_cq; /* where receives complete; may be the same */
  const haul_srq *srq;    /* where receives come from, or NULL */
  const haul_datagram_init *datagram; /* for UD and RD, or NULL: the defaults; read during the call only */
  uint64_t max_rate_bps;  /* RC, RD: bits per second on the wire, headers from IP up counted, at most; 0: no limit */
  uint64_t max_burst;     /* no more leaves over any time than the rate brings and so many bytes; 0: as it suits the device */
} haul_qp_init;
/* A reliable connection with 128 work requests of one piece each way. */
#define HAUL_QP_INIT { sizeof(haul_qp_init), HAUL_QPT_RC, 0, 128, 128, 1, 1, 0, NULL, NULL, NULL, NULL, 0, 0 }

/*
 * A queue pair. It keeps the domain and the queues alive. Errors: HAUL_ERR_INVALID for more than
 * the device has or queues of another context; HAUL_ERR_UNSUPPORTED; HAUL_ERR_EXHAUSTED.
 */
int haul_qp_create(haul_pd *pd, const haul_qp_init *init, haul_qp **out);

/* Ends it, and its connection. Completions that are in the queues already stay there. */
void haul_qp_destroy(haul_qp *qp);

enum haul_qp_state {
  HAUL_QPS_RESET = 0,
  HAUL_QPS_INIT = 1, /* receives may be posted */
  HAUL_QPS_RTR = 2,  /* the connection is being made */
  HAUL_QPS_RTS = 3,  /* connected */
  HAUL_QPS_SQD = 4,
  HAUL_QPS_SQE = 5,
  HAUL_QPS_ERR = 6   /* in error: what is posted is flushed */
};

/* Who made a connection end in error. */
enum haul_blame {
  HAUL_BLAME_NONE = 0,
  HAUL_BLAME_LOCAL = 1,          /* this program: a wrong key, length or right of its own */
  HAUL_BLAME_PEER = 2,           /* the peer did what the protocol or a region's rights forbid */
  HAUL_BLAME_PEER_COMPLAINS = 3, /* the peer sent a Terminate: because of this end, or for an error of its own */
  HAUL_BLAME_NETWORK = 4         /* reset, timed out, or closed with work outstanding */
};

typedef struct haul_qp_info {
  uint32_t size;
  uint32_t qp_num;       /* unique in its context */
  uint32_t state;        /* enum haul_qp_state */
  uint32_t blame;        /* enum haul_blame */
  uint32_t max_send_wr;  /* room as it was made: at least what was asked for */
  uint32_t max_recv_wr;
  uint32_t max_send_sge;
  uint32_t max_recv_sge;
  uint32_t max_inline;
  uint32_t reserved;
  char reason[256];      /* why it is in error, where that is known; else empty */
} haul_qp_info;
#define HAUL_QP_INFO_INIT { sizeof(haul_qp_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, HAUL_EMPTY }

int haul_qp_query(haul_qp *qp, haul_qp_info *out);

/* ---- Work requests --------------------------------------------------------------------------- */

/* The most pieces of a work request, on any device. */
#define HAUL_SGE_MAX 4

/* The most inline data of a work request, bytes, on any device. */
#define HAUL_INLINE_MAX 4096

/* A piece of local memory. */
typedef struct haul_sge {
  uint64_t addr; /* as the memory region counts: haul_mr_info.addr and on. Inline: a pointer as a number */
  uint32_t len;  /* bytes */
  uint32_t lkey; /* of the memory region. Inline: not used */
} haul_sge;

/*
 * Which queue pairs take an operation, and how it completes. "empty": without payload only. "-":
 * HAUL_ERR_UNSUPPORTED, or no completion. A device that lacks a HAUL_CAP_... lacks that type of
 * queue pair, or those operations.
 *
 *   operation              RC   UD    RD    at the requester  at the target       byte_len there
 *   SEND                   yes  yes   yes   SEND              RECV                payload
 *   SEND_WITH_IMM          yes  empty empty SEND              RECV                payload
 *   SEND_WITH_INV          yes  -     yes   SEND              RECV                payload
 *   RDMA_WRITE             yes  yes   yes   RDMA_WRITE        -                   -
 *   RDMA_WRITE_WITH_IMM    yes  -     yes   RDMA_WRITE        RECV_RDMA_WITH_IMM  payload
 *   RDMA_READ              yes  yes   yes   RDMA_READ         -                   -
 *   COMPARE_SWAP           yes  -     yes   COMPARE_SWAP      -                   -
 *   FETCH_ADD              yes  -     yes   FETCH_ADD         -                   -
 *   LOCAL_INV              yes  -     -     LOCAL_INV         -                   -
 *   WRITE_RECORD           -    yes   yes   WRITE_RECORD      RECV_WRITE_RECORD   payload
 *   WRITE_RECORD_WITH_IMM  -    yes   yes   WRITE_RECORD      RECV_WRITE_RECORD   payload
 *
 * RC: iWARP over TCP and UDT (soft-tcp, soft-udt) and RDMA devices; UD and RD: iWARP in UDP
 * datagrams (soft-udp). To an iWARP peer other than Longhaul, RC takes SEND_WITH_IMM without
 * payload only, which completes there as RECV_RDMA_WITH_IMM, and byte_len of that is 0. At the
 * requester byte_len is the bytes read of RDMA_READ, 8 of an atomic, and not defined of the others.
 * A target completion of a record counts the bytes that are valid, which over UD may be fewer than
 * the payload.
 */
enum haul_wr_opcode {
  HAUL_WR_SEND = 0,                /* into the buffer of a receive work request of the peer */
  HAUL_WR_SEND_WITH_IMM = 1,       /* with data for the peer's completion; without HAUL_CAP_SEND_WITH_IMM no payload */
  HAUL_WR_SEND_WITH_INV = 2,       /* and the peer's memory region of rkey data ends */
  HAUL_WR_RDMA_WRITE = 3,          /* into the peer's memory */
  HAUL_WR_RDMA_WRITE_WITH_IMM = 4, /* then data for the completion of a receive work request of the peer */
  HAUL_WR_RDMA_READ = 5,           /* out of the peer's memory, into the pieces */
  HAUL_WR_COMPARE_SWAP = 6,        /* 8 bytes become swap if they are compare_add; the piece gets what they were */
  HAUL_WR_FETCH_ADD = 7,           /* 8 bytes grow by compare_add; the piece gets what they were */
  HAUL_WR_LOCAL_INV = 8,           /* the memory region of this end with key data ends, once all before it is complete; no payload */
  HAUL_WR_WRITE_RECORD = 9,        /* into the peer's memory, and the peer learns which bytes are valid; takes no receive work
                                      request. Datagram services only */
  HAUL_WR_WRITE_RECORD_WITH_IMM = 10 /* the same, with data for the record */
};

/* Flags of haul_send_wr. */
#define HAUL_SEND_SIGNALED (1u << 0)  /* report the completion; without it only an error is reported, and polling the next reported
                                         completion of the queue pair frees the request's place in the send queue */
#define HAUL_SEND_FENCE (1u << 1)     /* wait until all reads and atomics before it are complete */
#define HAUL_SEND_SOLICITED (1u << 2) /* the peer's completion counts as solicited */
#define HAUL_SEND_INLINE (1u << 3)    /* the pieces are any memory, copied when posted; not for reads and atomics */

typedef struct haul_send_wr {
  uint64_t wr_id;        /* comes back with the completion */
  uint32_t opcode;       /* enum haul_wr_opcode */
  uint32_t flags;        /* HAUL_SEND_... */
  const haul_sge *sges;  /* the local bytes; the array itself is read when posted */
  uint32_t num_sge;      /* how many pieces, 0 to HAUL_SGE_MAX */
  uint32_t data;         /* immediate data (a number in this machine's byte order), or the key to invalidate */
  uint64_t remote_addr;  /* as the peer's memory region counts; a multiple of 8 for atomics */
  uint64_t compare_add;
  uint64_t swap;
  uint32_t rkey;         /* of the peer's memory region */
  uint32_t reserved;
} haul_send_wr;

typedef struct haul_recv_wr {
  uint64_t wr_id;       /* comes back with the completion */
  const haul_sge *sges; /* where the message goes; the array itself is read when posted */
  uint32_t num_sge;     /* how many pieces, 0 to HAUL_SGE_MAX */
  uint32_t reserved;
} haul_recv_wr;

/*
 * Posts len send work requests of a connection, in order. They start in the order of posting and
 * complete in that order. *posted (posted may be NULL) is how many were posted, also after an
 * error, which is about the next one; it and those behind it are not posted. In error state they
 * are flushed with a completion each. Never waits. Errors: HAUL_ERR_STATE before the connection is
 * there; HAUL_ERR_FULL; HAUL_ERR_INVALID for more pieces or inline data than there is room for,
 * unknown flags or opcodes; HAUL_ERR_UNSUPPORTED.
 */
int haul_post_send(haul_qp *qp, const haul_send_wr *requests, size_t len, size_t *posted);

/*
 * The same on a queue pair of a datagram service: requests[i] goes to peers[i]. UD completes a
 * request when it is handed to the network, in any order; RD when the peer has acknowledged it, in
 * the order of posting for each peer.
 */
int haul_post_send_to(haul_qp *qp, const haul_peer *peers, const haul_send_wr *requests, size_t len, size_t *posted);

/* Posts len receive work requests, in order; possible before the connection is there. *posted and
 * errors as haul_post_send; HAUL_ERR_INVALID with a shared receive queue. */
int haul_post_recv(haul_qp *qp, const haul_recv_wr *requests, size_t len, size_t *posted);

/* ---- Shared receive queues ------------------------------------------------------------------- */

typedef struct haul_srq_init {
  uint32_t size;
  uint32_t max_wr;  /* receive work requests */
  uint32_t max_sge; /* pieces of each */
  uint32_t reserved;
  uint64_t token;   /* names it in HAUL_ASYNC_SRQ_LIMIT_REACHED */
} haul_srq_init;
/* 1,024 work requests of one piece. */
#define HAUL_SRQ_INIT { sizeof(haul_srq_init), 1024, 1, 0, 0 }

/* init may be NULL: the defaults. Errors: HAUL_ERR_UNSUPPORTED; HAUL_ERR_INVALID for more than the
 * device has. */
int haul_srq_create(haul_pd *pd, const haul_srq_init *init, haul_srq **out);
void haul_srq_destroy(haul_srq *srq);

/* As haul_post_recv. */
int haul_srq_post_recv(haul_srq *srq, const haul_recv_wr *requests, size_t len, size_t *posted);

/* Reports once, as an asynchronous event, that fewer than limit work requests are left. 0 turns it
 * off. Errors: HAUL_ERR_UNSUPPORTED. */
int haul_srq_arm_limit(haul_srq *srq, uint32_t limit);

/* ---- Connections ----------------------------------------------------------------------------- */

/* The most private data, bytes, on any device; haul_device_info.max_private_data is what this one
 * has. */
#define HAUL_PRIVATE_DATA_MAX 512

/* What an end offers or asks for. */
typedef struct haul_conn_param {
  uint32_t size;
  uint32_t private_data_len;    /* bytes */
  const void *private_data;     /* for the peer's application; read during the call only */
  uint16_t responder_resources; /* reads and atomics of the peer that this end answers at once (IRD) */
  uint16_t initiator_depth;     /* reads and atomics that this end wants to have outstanding (ORD) */
  uint8_t rnr_retry_count;      /* how often to try again where the peer has posted no receive; 7: for ever. iWARP ignores it */
  uint8_t retry_count;          /* how often to retransmit. iWARP ignores it */
  uint8_t reserved[2];
} haul_conn_param;
/* 16 reads and atomics each way, all retries, no private data. */
#define HAUL_CONN_PARAM_INIT { sizeof(haul_conn_param), 0, NULL, 16, 16, 7, 7, { 0, 0 } }

/* A connection request of a peer. */
typedef struct haul_conn_request haul_conn_request;

enum haul_cm_type {
  HAUL_CM_CONNECT_REQUEST = 1, /* request: answer it with haul_accept or haul_reject */
  HAUL_CM_ESTABLISHED = 2,     /* the connection is there: sends may be posted */
  HAUL_CM_REJECTED = 3,        /* the peer's application does not want it: the queue pair is in error, another attempt takes a new one */
  HAUL_CM_UNREACHABLE = 4,     /* no listener, no route, no answer, or an invalid one: blame, reason */
  HAUL_CM_DISCONNECTED = 5,    /* it has ended; posted work requests are flushed. blame is HAUL_BLAME_NONE if an end disconnected in order */
  HAUL_CM_OTHER = 255
};

typedef struct haul_cm_event {
  uint32_t size;
  uint32_t type;                /* enum haul_cm_type */
  uint32_t qp_num;              /* the queue pair; 0 for a request */
  uint32_t blame;               /* enum haul_blame */
  haul_conn_request *request;   /* belongs to the program: exactly one haul_accept or haul_reject; NULL for others */
  uint16_t responder_resources; /* request: the most this end's ORD can be; established: IRD as it is now */
  uint16_t initiator_depth;     /* request: what this end's IRD should be; established: ORD as it is now */
  uint32_t private_data_len;    /* bytes */
  struct sockaddr_storage peer; /* of a request */
  uint8_t private_data[512];    /* the private data of the peer's application; over RoCE and InfiniBand with zeros behind it */
  char reason[256];             /* one line on what was wrong; else empty */
} haul_cm_event;
#define HAUL_CM_EVENT_INIT { sizeof(haul_cm_event), 0, 0, 0, NULL, 0, 0, 0, HAUL_EMPTY, HAUL_EMPTY, HAUL_EMPTY }

/* Where events of connections arrive. */
typedef struct haul_cm_channel haul_cm_channel;

/* Errors: HAUL_ERR_OS: no file descriptors. */
int haul_cm_channel_create(haul_context *context, haul_cm_channel **out);

/* Requests that nobody has taken are rejected. */
void haul_cm_channel_destroy(haul_cm_channel *channel);

/* Readable while there are events. */
int haul_cm_channel_fd(haul_cm_channel *channel);

/* Takes an event: 1, or 0 if there is none. Errors: HAUL_ERR_OS. */
int haul_cm_channel_poll(haul_cm_channel *channel, haul_cm_event *out);

/* The same, waiting for one until the time is over. */
int haul_cm_channel_wait(haul_cm_channel *channel, int64_t timeout_ns, haul_cm_event *out);

/* A listener. */
typedef struct haul_listener haul_listener;

/*
 * Listens at address (sockaddr_in or sockaddr_in6; port 0: any free one). Requests appear on
 * channel; at most backlog of them wait there for an answer, further peers are turned away. Errors:
 * HAUL_ERR_OS: the address is in use or not of this machine; HAUL_ERR_INVALID for another kind of
 * address.
 */
int haul_listen(haul_context *context, const struct sockaddr *address, socklen_t address_len, haul_cm_channel *channel,
                uint32_t backlog, haul_listener **out);

/* Where it listens, as getsockname: *len is the room at out, then the length of the address. */
int haul_listener_address(haul_listener *listener, struct sockaddr *out, socklen_t *len);

/* Ends it, not the connections that came of it. */
void haul_listener_destroy(haul_listener *listener);

/*
 * Asks the listener at address for a connection; does not wait. What comes of it appears on
 * channel: established, rejected or unreachable, and later disconnected. param may be NULL: the
 * defaults. Errors: HAUL_ERR_STATE unless the queue pair is new; HAUL_ERR_INVALID for private data
 * that is too long.
 */
int haul_connect(haul_qp *qp, const struct sockaddr *address, socklen_t address_len, const haul_conn_param *param,
                 haul_cm_channel *channel);

/*
 * Connects the request with a new queue pair of the listener's context; post its receives first.
 * The listener's channel gets its events. param may be NULL: the defaults. The request is used up,
 * also by an error, which rejects it. Errors: HAUL_ERR_STATE for a queue pair that is not new;
 * HAUL_ERR_INVALID for private data that is too long.
 */
int haul_accept(haul_conn_request *request, haul_qp *qp, const haul_conn_param *param);

/* Turns the peer away; its application gets the private data. The request is used up.
 * Errors: HAUL_ERR_INVALID for private data that is too long; it is rejected without any then. */
int haul_reject(haul_conn_request *request, const void *private_data, uint32_t len);

/* Ends the connection: what the transport has taken still arrives, what is posted and not complete
 * is flushed. Errors: HAUL_ERR_STATE where there is none. */
int haul_disconnect(haul_qp *qp);

/* ---- Connections without the connection manager ---------------------------------------------- */

/* What two applications exchange by means of their own. */
typedef struct haul_endpoint {
  uint32_t qp_num;
  uint32_t psn;     /* first packet sequence number, 24 bits */
  uint16_t lid;     /* 0 on Ethernet */
  uint16_t port;    /* transport port of the software provider, 0 for devices; a number in this machine's byte order */
  uint32_t reserved;
  uint8_t gid[16];  /* on IP networks the address, IPv4 mapped into IPv6 */
} haul_endpoint;

/* Returns what the peer needs. Errors: HAUL_ERR_UNSUPPORTED. */
int haul_qp_endpoint(haul_qp *qp, haul_endpoint *out);

/*
 * Connects with the queue pair that peer describes, which does the same with this one; waits for
 * it. Private data of param, which may be NULL, is not sent. No events: 0 is established.
 * Errors: HAUL_ERR_UNSUPPORTED; HAUL_ERR_TIMED_OUT; HAUL_ERR_INVALID for a negative timeout;
 * HAUL_ERR_STATE.
 */
int haul_qp_connect_endpoint(haul_qp *qp, const haul_endpoint *peer, const haul_conn_param *param, int64_t timeout_ns);

/* ---- Datagram services ----------------------------------------------------------------------- */

/*
 * Begins a datagram service (UD, RD) at address (sockaddr_in or sockaddr_in6; port 0: any free
 * one): from now on datagrams are received, and haul_post_send_to can be called. *own, which may be
 * NULL, is where it is bound, with the queue pair's own number: what peers need, once an address
 * that they reach replaces an unspecified one.
 * Errors: HAUL_ERR_UNSUPPORTED for connections; HAUL_ERR_STATE unless it is new; HAUL_ERR_OS: the
 * address is in use or not of this machine.
 */
int haul_qp_bind(haul_qp *qp, const struct sockaddr *address, socklen_t address_len, haul_peer *own);

/*
 * The same on a bound UDP socket of the program's, which is duplicated: fd stays the program's.
 * Close it, or keep it; while the queue pair lives, do not receive from it. Errors: as
 * haul_qp_bind; HAUL_ERR_INVALID for a socket of another kind.
 */
int haul_qp_adopt(haul_qp *qp, int fd, haul_peer *own);

/*
 * Joins a multicast group (its port does not count) at the interface with the address at, or with
 * NULL at the interface of the route to it. Peers send to the group's address, the queue pair's
 * port and HAUL_PEER_GROUP.
 * Errors: HAUL_ERR_UNSUPPORTED for connections and RD; HAUL_ERR_STATE before haul_qp_bind;
 * HAUL_ERR_OS.
 */
int haul_qp_attach_multicast(haul_qp *qp, const struct sockaddr *group, socklen_t group_len, const struct sockaddr *at,
                             socklen_t at_len);

/* Leaves the group. Errors: as haul_qp_attach_multicast. */
int haul_qp_detach_multicast(haul_qp *qp, const struct sockaddr *group, socklen_t group_len, const struct sockaddr *at,
                             socklen_t at_len);

enum haul_record_status {
  HAUL_RECORD_OPEN = 0,       /* more may be placed */
  HAUL_RECORD_FULL = 1,       /* every byte is there */
  HAUL_RECORD_PARTIAL = 2,    /* the last segment came, others did not */
  HAUL_RECORD_AGED = 3,       /* nothing came any more */
  HAUL_RECORD_SUPERSEDED = 4, /* the source went on to later messages */
  HAUL_RECORD_EVICTED = 5,    /* this end ran out of room for records */
  HAUL_RECORD_REVOKED = 6,    /* the region was deregistered */
  HAUL_RECORD_CHUNK = 7,      /* one segment, with HAUL_RECORDS_PER_CHUNK */
  HAUL_RECORD_OTHER = 255
};

/* Flags of haul_record. */
#define HAUL_RECORD_WITH_IMM (1u << 0) /* imm is the immediate data; absent where its segment was lost */

/* So many ranges are enough for any record. */
#define HAUL_RECORD_RANGES_MAX 64

/* Bytes of a message, from start up to but not including end. */
typedef struct haul_range {
  uint32_t start;
  uint32_t end;
} haul_range;

/* What a Write-Record left in a region of this end. Set ranges and ranges_room before the call; the
 * rest is filled in. */
typedef struct haul_record {
  haul_range *ranges;   /* the program's array for what is valid, ascending and not touching; NULL with ranges_room 0 */
  uint32_t ranges_room; /* its elements */
  uint32_t ranges_len;  /* how many ranges there are; those that there is no room for are left out */
  haul_peer source;     /* who wrote */
  uint64_t addr;        /* where the message begins in this end's memory, as the region counts */
  uint32_t rkey;        /* of the region */
  uint32_t message;     /* the writer's number for the message */
  uint32_t len;         /* bytes of the whole message */
  uint32_t valid;       /* bytes that are valid: the sum of all ranges */
  uint32_t status;      /* enum haul_record_status */
  uint32_t flags;       /* HAUL_RECORD_... */
  uint32_t imm;         /* a number in this machine's byte order */
  uint32_t reserved[5];
} haul_record;

/* Takes the record that a HAUL_WC_RECV_WRITE_RECORD with this wr_id announced: 1, or 0 if there is
 * none (any more: the last 1,024 that nobody took are kept). What is not valid there was not
 * claimed; what is was placed. */
int haul_qp_take_record(haul_qp *qp, uint64_t wr_id, haul_record *out);

/* The records of the region with this key, open ones and those that nobody took, without taking
 * them: how many there are, of which up to len were filled in. */
int haul_qp_records(haul_qp *qp, uint32_t rkey, haul_record *out, uint32_t len);

/* Counters of a datagram service. None of these events ended the queue pair. */
typedef struct haul_datagram_statistics {
  uint32_t size;
  uint32_t reserved;
  uint64_t sent;         /* datagrams of messages */
  uint64_t received;     /* datagrams, of any kind */
  uint64_t bad_checksum; /* dropped: CRC wrong */
  uint64_t malformed;    /* dropped: not of this protocol, or contradicting itself */
  uint64_t unknown_qp;   /* dropped: for a queue pair that is not here */
  uint64_t no_receive;   /* messages for which no receive work request was posted */
  uint64_t too_long;     /* messages longer than the receive work request */
  uint64_t duplicates;   /* received again after they were complete */
  uint64_t incomplete;   /* messages given up with parts missing */
  uint64_t refused;      /* writes or reads: key, right, bounds, source */
  uint64_t late;         /* segments of a record that was closed; not placed */
  uint64_t evicted;      /* messages in parts, or records, for which room was short; peers without room or common ground (RD) */
  uint64_t resent;       /* segments (RD) */
  uint64_t peers;        /* with state (RD) */
  uint64_t peer_bytes;   /* of that state */
  uint64_t kernel_drops; /* datagrams that the kernel dropped because its receive buffer was full */
  uint64_t undelivered;  /* datagrams sent that the network, or this host, reported as undelivered */
  uint64_t unsealed;     /* dropped by a sealed service: not sealed */
  uint64_t forged;       /* dropped by a sealed service: sealed under another key, or changed on the way */
  uint64_t replayed;     /* dropped by a sealed service: came before */
} haul_datagram_statistics;
#define HAUL_DATAGRAM_STATISTICS_INIT { sizeof(haul_datagram_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Errors: HAUL_ERR_UNSUPPORTED for connections. */
int haul_qp_datagram_statistics(haul_qp *qp, haul_datagram_statistics *out);

/* ---- Byte streams ---------------------------------------------------------------------------- */

/*
 * From version 1.2 on: a reliable stream of bytes each way over UDT, for applications without
 * messages: of devices with HAUL_CAP_STREAM (soft-udt, engine-udt), at the rate that they were
 * opened with. The peer may be any program that speaks UDT4 with stream sockets. A thread of the
 * library, or of the engine, drives each stream, so nothing need be called for it to go on. What is
 * sent is copied into a ring and stays there until it has arrived; what comes waits in another
 * one, which is the window: each must hold as much as rate x round trip. The bytes have UDP's
 * checksum of 16 bits and no other: what has to be whole needs a digest of the application's.
 * Headers have a CRC32C between Longhaul ends. If the device was opened with protect, peers must be
 * protected too, and all bytes are authenticated.
 */
typedef struct haul_stream haul_stream;

typedef struct haul_stream_options {
  uint32_t size;
  uint32_t reserved;
  uint64_t send_bytes;         /* taken and not arrived, at most: 1 MiB to 1 GiB. Memory is taken as it is used, of an engine at once */
  uint64_t receive_bytes;      /* come and not received, at most: the same */
  uint64_t connect_timeout_ns; /* until the peer must have answered */
  uint64_t silence_timeout_ns; /* a peer from which nothing arrives for so long is lost; a live one sends every second */
} haul_stream_options;
/* 16 MiB each way, 10 s, 30 s. */
#define HAUL_STREAM_OPTIONS_INIT \
  { sizeof(haul_stream_options), 0, 16u << 20, 16u << 20, 10 * (uint64_t)1000000000, 30 * (uint64_t)1000000000 }

/* What a stream can be waited for. */
#define HAUL_STREAM_OPEN (1u << 0)     /* the connection is there */
#define HAUL_STREAM_READABLE (1u << 1) /* haul_stream_recv has bytes, the end, or an error */
#define HAUL_STREAM_WRITABLE (1u << 2) /* haul_stream_send has room for an eighth of its ring, at least */
#define HAUL_STREAM_SENT (1u << 3)     /* all that was sent has arrived in the peer's ring, and the end if haul_stream_shutdown was called */
#define HAUL_STREAM_OVER (1u << 4)     /* the connection has ended, or was never established: haul_stream_query returns why */

/* Flags of haul_stream_info. */
#define HAUL_STREAM_PLAIN (1u << 0)      /* the peer is plain UDT, which knows only the end of both directions */
#define HAUL_STREAM_PEER_ENDED (1u << 1) /* the peer has ended its direction: come_bytes is all of it */

typedef struct haul_stream_info {
  uint32_t size;
  uint32_t flags;               /* HAUL_STREAM_PLAIN, HAUL_STREAM_PEER_ENDED */
  struct sockaddr_storage peer;
  uint64_t given_bytes;         /* taken by haul_stream_send */
  uint64_t arrived_bytes;       /* of those: arrived */
  uint64_t come_bytes;          /* come, in order */
  uint64_t received_bytes;      /* of those: taken by haul_stream_recv */
  uint64_t resent_bytes;        /* retransmitted; this and what follows may be 50 ms old */
  uint64_t rtt_ns;              /* smoothed round trip; 0 before it is known */
  uint64_t rate_bps;            /* at which this end may send now, wire bits per second */
  char reason[256];             /* why it is over, in one line; else empty */
} haul_stream_info;
#define HAUL_STREAM_INFO_INIT { sizeof(haul_stream_info), 0, HAUL_EMPTY, 0, 0, 0, 0, 0, 0, 0, HAUL_EMPTY }

/* A listener for byte streams. */
typedef struct haul_stream_listener haul_stream_listener;

/*
 * Listens at address (sockaddr_in or sockaddr_in6; port 0: any free one); options, which may be
 * NULL, are those of the streams. Errors: HAUL_ERR_UNSUPPORTED for devices without streams;
 * HAUL_ERR_OS: the address is in use or not of this machine.
 */
int haul_stream_listen(haul_context *context, const struct sockaddr *address, socklen_t address_len,
                       const haul_stream_options *options, haul_stream_listener **out);

/* Where it listens, as getsockname: *len is the room at out, then the length of the address. */
int haul_stream_listener_address(haul_stream_listener *listener, struct sockaddr *out, socklen_t *len);

/* Readable while haul_stream_accept has something to do. Handshakes take several packets: peers
 * wait while nobody calls it. */
int haul_stream_listener_fd(haul_stream_listener *listener);

/* Takes the next stream: 1, or 0 if there is none yet. A protected one has authenticated its peer.
 * Errors: HAUL_ERR_OS: no memory, no file descriptors. */
int haul_stream_accept(haul_stream_listener *listener, haul_stream **out);

/* The same, waiting for one until the time is over. */
int haul_stream_accept_wait(haul_stream_listener *listener, int64_t timeout_ns, haul_stream **out);

/* Ends it, not the streams that came of it. */
void haul_stream_listener_destroy(haul_stream_listener *listener);

/*
 * Begins to connect to the listener at address; does not wait: HAUL_STREAM_OPEN, or
 * HAUL_STREAM_OVER if nothing comes of it. options may be NULL. Errors: HAUL_ERR_UNSUPPORTED for
 * devices without streams; HAUL_ERR_OS: no route, no memory.
 */
int haul_stream_connect(haul_context *context, const struct sockaddr *address, socklen_t address_len,
                        const haul_stream_options *options, haul_stream **out);

/*
 * Begins to connect to a peer that does the same from address to local (UDT's rendezvous): neither
 * end listens, and both may be behind firewalls that let answers in. local has a port, and no
 * wildcard as its address unless its host has one address only. Which end begins first, and by how
 * much within its connect_timeout_ns, is the same. Otherwise as haul_stream_connect. Errors: also
 * HAUL_ERR_OS where local is in use; HAUL_ERR_UNSUPPORTED for devices opened with protect.
 */
int haul_stream_rendezvous(haul_context *context, const struct sockaddr *local, socklen_t local_len,
                           const struct sockaddr *address, socklen_t address_len, const haul_stream_options *options,
                           haul_stream **out);

/*
 * What of wanted (HAUL_STREAM_..., one or more) is so now. If nothing is, the file descriptor
 * becomes readable when that changes, and now and then for nothing; it reports for the last call
 * only, so it is for one thread.
 */
int haul_stream_poll(haul_stream *stream, uint32_t wanted);
int haul_stream_fd(haul_stream *stream);

/* Waits until something of wanted is so, or the time is over: what is. Any number of threads may
 * wait. */
int haul_stream_wait(haul_stream *stream, uint32_t wanted, int64_t timeout_ns);

/*
 * Copies as many of len bytes as there is room for: how many, 0 if there is none. It need not be
 * open yet. This does not mean that they have arrived: HAUL_STREAM_SENT does.
 * Errors: HAUL_ERR_DISCONNECTED, HAUL_ERR_OS, HAUL_ERR_TIMED_OUT: why it is over;
 * HAUL_ERR_DISCONNECTED after haul_stream_shutdown.
 */
int haul_stream_send(haul_stream *stream, const void *start, size_t len);

/*
 * Copies what has come, len bytes at most: how many, 0 if nothing has. Errors, when all that came
 * before was received: HAUL_ERR_ENDED: the peer has ended its direction, and this was all of it;
 * HAUL_ERR_DISCONNECTED, HAUL_ERR_OS, HAUL_ERR_TIMED_OUT: why it is over, without an end of the
 * peer's.
 */
int haul_stream_recv(haul_stream *stream, void *start, size_t len);

/*
 * Ends this direction: the peer gets HAUL_ERR_ENDED behind what was sent; the other direction goes
 * on. A plain UDT peer knows no single directions: there the connection ends when what was sent has
 * arrived.
 */
int haul_stream_shutdown(haul_stream *stream);

/* Describes it. */
int haul_stream_query(haul_stream *stream, haul_stream_info *out);

/*
 * Ends it at once. To end it in order: haul_stream_shutdown, haul_stream_recv until HAUL_ERR_ENDED,
 * and wait for HAUL_STREAM_SENT. Else what has not arrived is lost, and the peer gets
 * HAUL_ERR_DISCONNECTED.
 */
void haul_stream_destroy(haul_stream *stream);

#ifdef __cplusplus
}
#endif

#endif /* HAUL_H */
