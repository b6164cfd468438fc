/*
 * The transport driver `haul` of Globus XIO: GridFTP's data connections over RDMA verbs, with or
 * without an RNIC, or over UDT. docs/gridftp.md describes how to use it.
 *
 * A connection is a queue pair. Each end has a ring of registered slabs for what comes in, and
 * announces it to the peer in private data. What XIO hands over to be written is copied into slabs
 * of this end's own ring, and the write is complete then: so the window is the ring's and not that
 * of GridFTP, which has one write outstanding. A slab goes to the peer by an RDMA Write into a slab
 * of its ring and a Send that announces it (mode write), or by a Send into the slab of a receive
 * work request (mode send). The peer gives slabs back in grants. At the end all is drained: close
 * sends FIN and waits until the peer acknowledges it.
 *
 * With channel=udt a connection is a byte stream of the library instead, whose rings are what the
 * slabs are here: a hello goes before the bytes of each direction, and the end of this direction is
 * what FIN is.
 *
 * Map: globus_xio_haul_driver.c XIO's table of functions · options.c · device.c · wire.c hello and
 * headers · connection.c making one, its memory · flow.c the bytes · stream.c those of channel=udt
 * · serve.c its thread, reading, writing, closing · open.c · accept.c · loop.c calls of Globus.
 *
 * Threads: every connection has one, which waits for completions and finishes XIO's operations.
 * Under Globus' thread model without threads (globus-url-copy's default) it must not call Globus:
 * what is to be finished goes through a pipe to Globus' own loop. The lock of a connection is never
 * held in a call of Globus, for its callbacks come back into the driver.
 */
#ifndef HAUL_XIO_H
#define HAUL_XIO_H

#include <haul.h>

#include <globus_common.h>
#include <globus_xio_driver.h>
#include <globus_xio_system.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of the hello and the headers: both ends must have the same. */
#ifndef HAUL_XIO_VERSION
#define HAUL_XIO_VERSION 1
#endif

#define SECOND_NS ((int64_t)1000000000)
/* How long the end of a process waits, at most, for its threads to leave Globus and for peers to
 * have what was sent to them. */
#define EXIT_NS (3 * SECOND_NS)
/* How long the peer may take to connect; UDT gives up by itself after 10 s. */
#define CONNECT_NS (60 * SECOND_NS)
#define TEXT_MAX 400
#define SLABS_MIN 4
#define SLABS_MAX 1024
#define SLAB_MIN 4096
#define SLAB_MAX (64 << 20)
/* Receives beyond those for slabs, and buffers for what is no slab: grants, FIN and its answer. A
 * grant is sent for a quarter of the ring, and what it grants must be used and freed before it can
 * be granted again: no more than five are on their way. One of less is sent when nothing happens,
 * if the peer has seen all before it. */
#define CONTROLS 8
#define ALL_CONTROLS ((1u << CONTROLS) - 1)
#define GRANT_SHARE 4

static inline int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * SECOND_NS + now.tv_nsec;
}

static inline struct timespec time_of(int64_t ns) {
  return (struct timespec){.tv_sec = ns / SECOND_NS, .tv_nsec = ns % SECOND_NS};
}

/* An error of Globus, of an enum globus_xio_error_type_t: what a server logs and a client
 * prints. */
globus_result_t failure(int type, const char *format, ...) __attribute__((format(printf, 2, 3)));
globus_result_t no_memory(void);

/* ---- Options --------------------------------------------------------------------------------- */

enum mode { MODE_WRITE = 0, MODE_SEND = 1, MODE_STREAM = 2 };

/* Bytes of a value of protect. */
#define PROTECT_MAX 512
#define ENGINE_CPUS_MAX 64

struct options {
  char channel[16];
  char device[64]; /* of haul_open */
  bool device_named; /* by the option device, not by channel */
  char interface[64];
  char stats[256];
  char protect[PROTECT_MAX]; /* of haul_open_options; empty: plain */
  char engine_cpus[ENGINE_CPUS_MAX]; /* of haul_open_options; empty: this process' threads drive */
  uint64_t rate_bps;         /* 0: measured */
  uint32_t slab;     /* bytes */
  uint32_t slabs;
  enum mode mode;
  bool stream; /* channel=udt: a byte stream instead of a queue pair */
  bool crc, fallback;
  int port;
  char wrong[TEXT_MAX]; /* the first option that cannot be: GridFTP ignores the result of setting one */
};

extern globus_xio_string_cntl_table_t string_options[];

/* Fills string_options. */
void options_init(void);
globus_result_t attr_init(void **out);
globus_result_t attr_copy(void **out, void *from);
globus_result_t attr_cntl(void *attr, int command, va_list arguments);
globus_result_t attr_destroy(void *attr);

/* The value of an attribute, or why it is invalid. */
globus_result_t options_of(const void *attr, struct options *options);

/* ---- Device ---------------------------------------------------------------------------------- */

/* An opened device; connections of a process with the same options share it. */
struct device {
  struct device *next;
  unsigned users;
  char name[64];
  char protect[PROTECT_MAX];
  char engine_cpus[ENGINE_CPUS_MAX];
  uint64_t rate_bps;
  bool crc;
  haul_context *context;
  haul_pd *pd;
  haul_device_info info;
};

/* The library's words about its last failure with this context. */
const char *last_error(haul_context *context, char text[TEXT_MAX]);

/* The device that the options name, opened already or now; NULL and what is wrong. */
struct device *device_take(const struct options *options, char wrong[TEXT_MAX]);
struct device *device_share(struct device *device);
void device_leave(struct device *device);

/* ---- The wire -------------------------------------------------------------------------------- */

/*
 * Private data of both ends, or the first bytes of their streams, in network byte order; version
 * and status stay where they are for ever:
 *   0 "HXIO"   4 version   6 status   8 slab bytes   12 slabs   14 mode   16 rkey   20 (not used)
 *              24 address of the slabs
 */
#define HELLO_LEN 32
#define HELLO_MAGIC 0x4858494fu

enum hello_status { HELLO_GOOD = 0, HELLO_VERSION = 1, HELLO_LIMITS = 2 };

struct hello {
  uint16_t version, status, slabs, mode;
  uint32_t slab, rkey;
  uint64_t addr;
};

/* What goes before a slab's bytes (mode send), behind them (mode write), or alone. A grant of mode
 * write is followed by the numbers of `length` slabs, 16 bits each. */
#define HEADER_LEN 24

enum kind { KIND_DATA = 1, KIND_GRANT = 2, KIND_FIN = 3, KIND_FIN_ACK = 4 };

struct header {
  uint16_t kind, slab;
  uint32_t length;
  uint64_t offset; /* of the first byte in the stream; FIN: of the stream's end */
  uint32_t seen;   /* grants that this end has got from the peer */
};

void put(unsigned char *at, uint64_t value, int bytes);
uint64_t take(const unsigned char *at, int bytes);
void hello_write(unsigned char at[HELLO_LEN], const struct hello *hello);

/* Reads the peer's hello, of a stream or of a queue pair; what is wrong with it, or NULL. */
const char *hello_read(const unsigned char *at, size_t len, bool stream, struct hello *hello, char wrong[TEXT_MAX]);
void header_write(unsigned char at[HEADER_LEN], const struct header *header);
struct header header_read(const unsigned char at[HEADER_LEN]);

/* ---- Connection ------------------------------------------------------------------------------ */

enum outcome { DONE, FAILED, END_OF_FILE, CANCELED, TIMED_OUT };

/* An operation of XIO that is not finished. */
struct request {
  struct request *next;
  globus_xio_operation_t op;
  bool write;
  bool held;     /* it cannot be canceled yet, so it must not be finished either */
  bool busy;     /* its bytes are being copied */
  bool canceled; /* while it was busy */
  enum outcome outcome;
  size_t done, wanted;
  int at, count; /* the piece that is next */
  size_t offset; /* in that piece */
  char *wrong;   /* of FAILED, ours */
  globus_xio_iovec_t pieces[];
};

struct queue {
  struct request *first, **last;
};

/* Bytes that have come, in a slab. */
struct staged {
  uint16_t slab;
  uint32_t length, taken;
};

struct connection {
  struct connection *next; /* of those that are open */
  struct options options;
  struct device *device;
  struct hello mine, peers;
  haul_cm_channel *events; /* of the end that connects */
  haul_cq *cq;
  haul_qp *qp;
  uint32_t qp_num;
  haul_stream *stream; /* instead of all of it */
  bool active;
  struct sockaddr_storage peer;
  int64_t since_ns;

  /* A socket instead of all that: the peer has no driver. */
  globus_xio_system_socket_handle_t plain;
  int plain_fd;

  /* Registered memory: slabs for what comes, slabs for what goes, headers and grants of both. */
  haul_mr *rx_mr, *tx_mr, *control_mr;
  haul_mr_info rx, tx, control;
  uint32_t receives, control_len, out_slab;

  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t thread;
  int wake; /* an eventfd: the opening is canceled; of a stream, that there is more to wait for */
  globus_xio_operation_t open_op;
  globus_xio_contact_t contact;

  /* Outward. The slab that is being filled is `open`. */
  struct queue writes;
  uint16_t *free_slots, *credits; /* stacks: what was used last is still in the cache */
  uint32_t free_slot_count, credit_count, in_flight, unacknowledged;
  int open;
  uint32_t open_len;
  bool filling;
  uint32_t free_controls; /* bits */

  /* Inward. */
  struct queue reads;
  struct staged *staged;
  uint32_t staged_first, staged_count;
  uint16_t *returned; /* slabs to be granted again */
  bool *granted;      /* slabs that the peer may use */
  uint32_t returned_count;
  uint32_t grants_sent, grants_seen, grants_taken; /* this end's, those that the peer has; the peer's */
  bool delivering;
  bool may_read; /* the stream may have something */

  struct queue finished;
  int64_t moved_ns; /* when something was completed last */
  bool left; /* the connection was lost, but all that was sent had been acknowledged */
  bool judged;         /* it is down, and known whether that is bad */
  uint32_t end_status; /* of the first completion that was no success */
  bool peer_fin, fin_sent, fin_acked, owe_fin_ack, down, closing, aborted;
  globus_xio_operation_t close_op;
  char wrong[TEXT_MAX]; /* why nothing works any more; empty while it does */

  /* Counted for the statistics. */
  uint64_t tx_bytes, rx_bytes, tx_slabs, rx_slabs, tx_ops, rx_ops;
};

void queue_init(struct queue *queue);
void queue_push(struct queue *queue, struct request *request);
struct request *queue_pop(struct queue *queue);
struct request *queue_find(const struct queue *queue, globus_xio_operation_t op);

/* The first request, if it may be worked on. */
struct request *queue_ready(const struct queue *queue);

/* Takes this operation's request out, from wherever it is. */
struct request *queue_remove(struct queue *queue, globus_xio_operation_t op);

/* Takes over the user of device. */
struct connection *connection_new(const struct options *options, struct device *device, bool active);

/* Everything that a connection needs before it is connected; what is wrong is in wrong. */
bool connection_prepare(struct connection *c, unsigned mode);

/* The peer's ring is known: all of it may be used. */
void connection_begin(struct connection *c, const struct hello *peers);

/* Frees everything but the user of the device, which it hands back: to close one may take a
 * moment. */
struct device *connection_free(struct connection *c);
void connection_drop(struct connection *c);

/* From now on it is closed, and its statistics are reported, at the latest when the process ends.
 */
void connection_opened(struct connection *c);

/* It has ended: its statistics are reported once. */
void connection_told(const struct connection *c);

/* At the end of the process: closes those that are open, and waits until they are. */
void connections_close(int64_t until_ns);

/* Allocates registered memory; sets wrong to the reason of a failure. */
bool allocate(const struct device *device, size_t len, uint32_t access, haul_mr **mr, haul_mr_info *info, char wrong[TEXT_MAX]);

/* Where headers and grants are: of slabs that go, of what goes without a slab, of what comes. */
uint32_t header_out(uint32_t slot);
uint32_t control_out(const struct connection *c, uint32_t number);
uint32_t control_in(const struct connection *c, uint32_t number);
unsigned char *control_bytes(const struct connection *c, uint32_t at);
haul_sge control_piece(const struct connection *c, uint32_t at, uint32_t len);

/* Posts the receive with this number. In mode send it has a slab as well. */
bool post_receive(struct connection *c, uint32_t number);

/* ---- Flow: all with the lock ----------------------------------------------------------------- */

/* Nothing works any more. */
void fail(struct connection *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool is_over(const struct connection *c);

/* Moves writes into slabs, and slabs to the peer, as far as there is room. One thread at a time
 * does, the others leave what there is to do to it. */
void fill(struct connection *c);

/* Gives what has come to the reads that wait for it. One thread at a time does, as in fill. */
void deliver(struct connection *c);
void take_completion(struct connection *c, const haul_wc *wc);

/* The connection has ended and there are no more completions: whether that is an error depends on
 * what the ends sent before. */
void judge_end(struct connection *c);

/* A request is over; somebody finishes it once the lock is free. */
void settle(struct connection *c, struct request *request, enum outcome outcome);

/* So many bytes of the piece at which a request is have been moved. */
void move_on(struct request *request, size_t len);

/* So much of the first write, which was busy, has been taken. */
void note_taken(struct connection *c, struct request *request, size_t len);

/* Whatever there is to do; when nothing happens, small grants too. */
void advance(struct connection *c, bool idle);

/* Without any lock, in a thread that may call Globus. The connection may be gone when this
 * returns. */
void finish(struct request *request);

enum opened { OPENED, OPEN_FAILED, OPEN_CANCELED, NO_DRIVER };

/* ---- Streams --------------------------------------------------------------------------------- */

haul_stream_options stream_options(const struct options *options);

/* Connects to the peer's driver, and exchanges hellos. NO_DRIVER where there is none. */
enum opened connect_stream(struct connection *c);

/* Answers the first message of the peer of a stream; returns what is wrong if it is refused. */
enum opened welcome_stream(struct connection *c, int wake, char wrong[TEXT_MAX]);

/* With the lock, by the one that fills, or delivers: as copy_out and copy_in. False when the stream
 * takes, or has, no more. */
bool stream_take(struct connection *c);
void stream_give(struct connection *c);

/* With the lock: ends this direction. */
void stream_finish(struct connection *c);

/* With the lock: whether something of what was given to the stream has not arrived. */
bool stream_owes(const struct connection *c);

/* Waits until there is something to do for the connection, for a second at most. */
void stream_wait(struct connection *c);

/* There is something else to wait for. */
void stream_wake(const struct connection *c);

/* ---- Calls of Globus ------------------------------------------------------------------------- */

/* In a thread that may call Globus, before anything that another thread has to finish. */
bool loop_start(void);

/* Has it done where Globus may be called: here, where there are threads. Not at all after
 * globus_end. */
void in_globus(void (*run)(void *), void *argument);

/* Globus is there; the driver's threads may call it. */
void globus_begin(void);

/* Globus takes away what they use, or the process ends: none may call it any more. Waits until no
 * other is in it. */
void globus_end(int64_t until_ns);

/* ---- Serving, opening, accepting ------------------------------------------------------------- */

bool start_thread(void *(*run)(void *), void *argument);

/* With the lock: begins to close; its thread does the rest. */
void connection_close(struct connection *c);

/* The thread of a connection from when it is open. */
void serve(struct connection *c);
void *run_serve(void *connection);

/* Where Globus may be called: gives it the socket of a connection whose peer has no driver. False,
 * and why in wrong. */
bool plain_begin(struct connection *c);

/*
 * The port of a contact is that of a TCP socket, and RDMA is spoken at the next one, of TCP or UDP
 * or the device's own. So a peer without the driver is recognised, by either end, before it gets a
 * byte that it would take for data.
 */
#define RDMA_PORT(port) ((port) + 1)

void set_port(struct sockaddr_storage *address, int port);
int port_of(const struct sockaddr_storage *address);
socklen_t address_len(const struct sockaddr_storage *address);

/* A numeric address, or a name where `flags` do not forbid it. */
bool resolve(const char *host, const char *port, int flags, struct sockaddr_storage *out, char wrong[TEXT_MAX]);

/* Waits until `fd` is readable: 1, which may be in vain; 0 when the time is over; -1 when `wake`
 * reports that the opening is canceled. */
int wait_for(int fd, int wake, int64_t until_ns);

/* Waits for an event of this channel: 1; 0 when the time is over; -1 when the opening is
 * canceled. */
int next_event(haul_cm_channel *events, int wake, int64_t until_ns, haul_cm_event *event);

/* The passive side of a connection, from accept to open. */
struct link {
  struct connection *c;
};

globus_result_t driver_open(const globus_xio_contact_t *contact, void *link, void *attr, globus_xio_operation_t op);
globus_result_t driver_close(void *handle, void *attr, globus_xio_operation_t op);
globus_result_t driver_read(void *handle, const globus_xio_iovec_t *pieces, int count, globus_xio_operation_t op);
globus_result_t driver_write(void *handle, const globus_xio_iovec_t *pieces, int count, globus_xio_operation_t op);
globus_result_t driver_cntl(void *handle, int command, va_list arguments);
globus_result_t server_init(void *attr, const globus_xio_contact_t *contact, globus_xio_operation_t op);
globus_result_t server_accept(void *server, globus_xio_operation_t op);
globus_result_t server_destroy(void *server);
globus_result_t server_cntl(void *server, int command, va_list arguments);
globus_result_t link_cntl(void *link, int command, va_list arguments);
globus_result_t link_destroy(void *link);

#endif
