/* The bytes: from writes into slabs and to the peer, from slabs into reads, and what completions
 * say of them. */
#include "xio.h"

void settle(struct connection *c, struct request *request, enum outcome outcome) {
  request->outcome = outcome;
  if (outcome == FAILED) {
    request->wrong = strdup(c->wrong);
  }
  queue_push(&c->finished, request);
}

/* Without any lock, in a thread that may call Globus. The connection may be gone when this
 * returns. */
void finish(struct request *request) {
  globus_result_t result = GLOBUS_SUCCESS;
  GlobusXIOName(haul);
  switch (request->outcome) {
  case DONE:
    break;
  case END_OF_FILE:
    result = GlobusXIOErrorEOF();
    break;
  case CANCELED:
    result = GlobusXIOErrorCanceled();
    break;
  case TIMED_OUT:
    result = GlobusXIOErrorTimeout();
    break;
  case FAILED:
    result = failure(GLOBUS_XIO_ERROR_SYSTEM_ERROR, "%s", request->wrong != NULL ? request->wrong : "no memory");
    break;
  }
  globus_xio_operation_t op = request->op;
  size_t done = request->done;
  bool write = request->write;
  free(request->wrong);
  free(request);
  globus_xio_operation_disable_cancel(op);
  if (write) {
    globus_xio_driver_finished_write(op, result, done);
  } else {
    globus_xio_driver_finished_read(op, result, done);
  }
}

/* ---- Outward ---- */

/* With the lock: nothing works any more. */
void fail(struct connection *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

void fail(struct connection *c, const char *format, ...) {
  if (c->wrong[0] == '\0') {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->wrong, sizeof c->wrong, format, arguments);
    va_end(arguments);
  }
}

bool is_over(const struct connection *c) {
  return c->wrong[0] != '\0';
}

enum work { WORK_RECEIVE = 0, WORK_DATA = 1, WORK_CONTROL = 2 };

static uint64_t work_id(enum work work, uint32_t number) {
  return (uint64_t)work << 32 | number;
}

static void post(struct connection *c, const haul_send_wr *requests, size_t count) {
  if (haul_post_send(c->qp, requests, count, NULL) != HAUL_OK && !c->down) {
    char text[TEXT_MAX];
    fail(c, "%s", last_error(c->device->context, text));
  }
}

/* With the lock, and a free control: sends a header alone, or with the numbers of slabs behind
 * it. */
static void post_control(struct connection *c, enum kind kind, uint64_t offset, const uint16_t *slabs, uint32_t count) {
  uint32_t number = (uint32_t)__builtin_ctz(c->free_controls);
  c->free_controls &= ~(1u << number);
  uint32_t at = control_out(c, number), len = HEADER_LEN;
  struct header header = {.kind = (uint16_t)kind, .length = count, .offset = offset, .seen = c->grants_taken};
  header_write(control_bytes(c, at), &header);
  for (uint32_t i = 0; slabs != NULL && i < count; i++, len += 2) {
    put(control_bytes(c, at + len), slabs[i], 2);
  }
  haul_sge piece = control_piece(c, at, len);
  haul_send_wr request = {
      .wr_id = work_id(WORK_CONTROL, number), .opcode = HAUL_WR_SEND, .flags = HAUL_SEND_SIGNALED, .sges = &piece, .num_sge = 1};
  post(c, &request, 1);
}

/* By the one that fills, with the lock, which it gives up meanwhile: sends the open slab. */
static void post_slab(struct connection *c) {
  uint32_t slot = (uint32_t)c->open, len = c->open_len;
  struct header header = {
      .kind = KIND_DATA, .slab = c->credits[--c->credit_count], .length = len, .offset = c->tx_bytes - len,
      .seen = c->grants_taken};
  header_write(control_bytes(c, header_out(slot)), &header);
  haul_sge bytes = {.addr = c->tx.addr + (uint64_t)slot * c->out_slab, .len = len, .lkey = c->tx.lkey};
  haul_sge both[2] = {control_piece(c, header_out(slot), HEADER_LEN), bytes};
  bool send = c->mine.mode == MODE_SEND;
  haul_send_wr requests[2] = {
      {.wr_id = work_id(WORK_DATA, slot),
       .opcode = HAUL_WR_RDMA_WRITE,
       .sges = &bytes,
       .num_sge = 1,
       .remote_addr = c->peers.addr + (uint64_t)header.slab * c->peers.slab,
       .rkey = c->peers.rkey},
      {.wr_id = work_id(WORK_DATA, slot),
       .opcode = HAUL_WR_SEND,
       .flags = HAUL_SEND_SIGNALED,
       .sges = both,
       .num_sge = send ? 2 : 1}};
  c->open = -1;
  c->open_len = 0;
  c->in_flight++;
  c->unacknowledged++;
  c->tx_slabs++;
  pthread_mutex_unlock(&c->lock);
  size_t first = send ? 1 : 0;
  int posted = haul_post_send(c->qp, requests + first, 2 - first, NULL);
  char text[TEXT_MAX];
  if (posted != HAUL_OK) {
    last_error(c->device->context, text);
  }
  pthread_mutex_lock(&c->lock);
  if (posted != HAUL_OK && !c->down) {
    fail(c, "%s", text);
  }
}

/* Whether the open slab is to leave though there is room in it: when nobody adds to it, and the
 * ring is not short. */
static bool is_to_leave(const struct connection *c) {
  return c->writes.first == NULL && (c->closing || c->in_flight == 0 || c->credit_count * 2 >= c->peers.slabs);
}

static bool open_slab(struct connection *c) {
  if (c->tx_mr == NULL) {
    char wrong[TEXT_MAX];
    size_t len = (size_t)c->options.slabs * c->out_slab;
    if (!allocate(c->device, len, 0, &c->tx_mr, &c->tx, wrong)) {
      fail(c, "%s", wrong);
      return false;
    }
  }
  if (c->free_slot_count > 0) {
    c->open = c->free_slots[--c->free_slot_count];
    c->open_len = 0;
  }
  return c->open >= 0;
}

/* By the one that fills, with the lock, which it gives up while it copies: adds to the open slab
 * what fits of the first write. */
static void copy_out(struct connection *c) {
  struct request *request = c->writes.first;
  char *to = (char *)c->tx.ptr + (size_t)c->open * c->out_slab + c->open_len;
  size_t room = c->out_slab - c->open_len, len = 0;
  request->busy = true;
  pthread_mutex_unlock(&c->lock);
  while (request->at < request->count && len < room) {
    const globus_xio_iovec_t *piece = &request->pieces[request->at];
    size_t left = piece->iov_len - request->offset, now = left < room - len ? left : room - len;
    memcpy(to + len, (const char *)piece->iov_base + request->offset, now);
    len += now;
    move_on(request, now);
  }
  pthread_mutex_lock(&c->lock);
  c->open_len += (uint32_t)len;
  note_taken(c, request, len);
}

void move_on(struct request *request, size_t len) {
  request->offset += len;
  if (request->offset == request->pieces[request->at].iov_len) {
    request->at++;
    request->offset = 0;
  }
}

void note_taken(struct connection *c, struct request *request, size_t len) {
  request->busy = false;
  request->done += len;
  c->tx_bytes += len;
  if (request->canceled || request->at == request->count) {
    queue_remove(&c->writes, request->op);
    c->tx_ops++;
    if (request->canceled) {
      c->aborted = true;
    }
    settle(c, request, request->canceled ? request->outcome : DONE);
  }
}

/* With the lock: moves writes into slabs, and slabs to the peer, as far as there is room. One
 * thread at a time does, the others leave what there is to do to it. */
void fill(struct connection *c) {
  if (c->filling) {
    return;
  }
  c->filling = true;
  while (!is_over(c)) {
    if (c->judged && queue_ready(&c->writes) != NULL) {
      fail(c, "the peer has closed the connection");
    } else if (c->stream != NULL) {
      if (queue_ready(&c->writes) == NULL || !stream_take(c)) {
        break;
      }
    } else if (c->open >= 0 && c->open_len > 0 && (c->open_len == c->out_slab || is_to_leave(c))) {
      if (c->credit_count == 0) {
        break;
      }
      post_slab(c);
    } else if (queue_ready(&c->writes) == NULL || (c->open < 0 && !open_slab(c))) {
      break;
    } else {
      copy_out(c);
    }
  }
  c->filling = false;
  while (is_over(c) && queue_ready(&c->writes) != NULL) {
    settle(c, queue_pop(&c->writes), FAILED);
  }
}

/* ---- Inward ---- */

/* With the lock: gives slabs back to the peer, when there are enough for a message. */
static void grant(struct connection *c, bool idle) {
  bool small = c->closing || c->peer_fin || (idle && c->grants_sent == c->grants_seen);
  uint32_t count = c->returned_count, least = small ? 1 : (c->options.slabs + GRANT_SHARE - 1) / GRANT_SHARE;
  if (is_over(c) || c->down || c->free_controls == 0 || count < least) {
    return;
  }
  for (uint32_t i = 0; i < count; i++) {
    c->granted[c->returned[i]] = true;
  }
  c->returned_count = 0;
  c->grants_sent++;
  post_control(c, KIND_GRANT, 0, c->mine.mode == MODE_WRITE ? c->returned : NULL, count);
}

/* With the lock: a slab's bytes have been read. */
static void release(struct connection *c, uint16_t slab) {
  if (c->mine.mode == MODE_SEND && !c->down && !post_receive(c, slab)) {
    char text[TEXT_MAX];
    fail(c, "%s", last_error(c->device->context, text));
  }
  c->returned[c->returned_count++] = slab;
}

/* By the one that delivers, with the lock, which it gives up while it copies. */
static void copy_in(struct connection *c) {
  struct request *request = c->reads.first;
  struct staged *staged = &c->staged[c->staged_first];
  const char *from = (const char *)c->rx.ptr + (size_t)staged->slab * c->options.slab + staged->taken;
  size_t left_here = staged->length - staged->taken, len = 0;
  request->busy = true;
  pthread_mutex_unlock(&c->lock);
  while (request->at < request->count && len < left_here) {
    const globus_xio_iovec_t *piece = &request->pieces[request->at];
    size_t left = piece->iov_len - request->offset, now = left < left_here - len ? left : left_here - len;
    memcpy((char *)piece->iov_base + request->offset, from + len, now);
    len += now;
    move_on(request, now);
  }
  pthread_mutex_lock(&c->lock);
  request->busy = false;
  request->done += len;
  staged->taken += (uint32_t)len;
  if (staged->taken == staged->length) {
    release(c, staged->slab);
    c->staged_first = (c->staged_first + 1) % c->receives;
    c->staged_count--;
    grant(c, false);
  }
}

static bool has_bytes(const struct connection *c) {
  return c->stream != NULL ? c->may_read : c->staged_count > 0;
}

/* With the lock: gives what has come to the reads that wait for it. One thread at a time does, as
 * in fill. */
void deliver(struct connection *c) {
  if (c->delivering) {
    return;
  }
  c->delivering = true;
  for (struct request *first; (first = queue_ready(&c->reads)) != NULL;) {
    enum outcome outcome = DONE;
    if (first->canceled) {
      c->aborted = c->aborted || first->done > 0;
      outcome = first->outcome;
    } else if (first->at < first->count && has_bytes(c)) {
      (c->stream != NULL ? stream_give : copy_in)(c);
      continue;
    } else if (first->done < first->wanted || (first->done == 0 && !has_bytes(c))) {
      if (c->peer_fin) {
        outcome = END_OF_FILE;
      } else if (is_over(c)) {
        outcome = FAILED;
      } else {
        break;
      }
    }
    queue_pop(&c->reads);
    c->rx_ops++;
    settle(c, first, outcome);
  }
  c->delivering = false;
}

/* ---- Completions ---- */

static void take_data(struct connection *c, uint32_t number, const struct header *header, uint32_t byte_len) {
  bool send = c->mine.mode == MODE_SEND;
  uint32_t slab = send ? number : header->slab;
  if (header->length == 0 || header->length > c->options.slab || header->offset != c->rx_bytes || c->peer_fin ||
      byte_len != HEADER_LEN + (send ? header->length : 0) || (!send && (slab >= c->options.slabs || !c->granted[slab])) ||
      c->staged_count == c->options.slabs) {
    fail(c, "the peer's driver breaks the protocol: %u bytes in slab %u at %llu", header->length, slab,
         (unsigned long long)header->offset);
    return;
  }
  c->granted[slab] = false;
  c->staged[(c->staged_first + c->staged_count) % c->receives] = (struct staged){.slab = (uint16_t)slab, .length = header->length};
  c->staged_count++;
  c->rx_bytes += header->length;
  c->rx_slabs++;
}

static void take_grant(struct connection *c, const unsigned char *slabs, uint32_t count, uint32_t byte_len) {
  bool listed = c->mine.mode == MODE_WRITE;
  bool good = count <= c->unacknowledged && byte_len == HEADER_LEN + (listed ? 2 * count : 0);
  for (uint32_t i = 0; good && i < count; i++) {
    uint16_t slab = listed ? (uint16_t)take(slabs + (size_t)2 * i, 2) : 0;
    good = slab < c->peers.slabs;
    c->credits[c->credit_count++] = slab;
  }
  c->unacknowledged -= good ? count : 0;
  c->grants_taken++;
  if (!good) {
    fail(c, "the peer's driver breaks the protocol: a grant of %u slabs", count);
  }
}

/* With the lock: a message has come into this receive. */
static void take_message(struct connection *c, uint32_t number, uint32_t byte_len) {
  const unsigned char *at = control_bytes(c, control_in(c, number));
  if (byte_len < HEADER_LEN) {
    fail(c, "the peer's driver breaks the protocol: a message of %u bytes", byte_len);
    return;
  }
  struct header header = header_read(at);
  c->grants_seen = header.seen;
  switch (header.kind) {
  case KIND_DATA:
    take_data(c, number, &header, byte_len);
    break;
  case KIND_GRANT:
    take_grant(c, at + HEADER_LEN, header.length, byte_len);
    break;
  case KIND_FIN:
    if (header.offset == c->rx_bytes) {
      c->peer_fin = c->owe_fin_ack = true;
    } else {
      fail(c, "the peer sent %llu bytes, and %llu have come", (unsigned long long)header.offset, (unsigned long long)c->rx_bytes);
    }
    break;
  case KIND_FIN_ACK:
    c->fin_acked = true;
    break;
  default:
    fail(c, "the peer's driver breaks the protocol: a message of kind %u", header.kind);
  }
  /* In mode send a slab's receive is posted again when its bytes have been read. */
  bool keep = header.kind == KIND_DATA && c->mine.mode == MODE_SEND;
  if (!is_over(c) && !keep && !post_receive(c, number) && !c->down) {
    char text[TEXT_MAX];
    fail(c, "%s", last_error(c->device->context, text));
  }
}

void judge_end(struct connection *c) {
  if (c->judged || is_over(c)) {
    return;
  }
  c->judged = true;
  if (c->peer_fin && c->unacknowledged == 0) {
    return;
  }
  haul_qp_info info = HAUL_QP_INFO_INIT;
  c->left = c->unacknowledged == 0 && c->open_len == 0 && c->writes.first == NULL;
  bool told = haul_qp_query(c->qp, &info) == HAUL_OK && info.reason[0] != '\0';
  fail(c, "the connection to the peer's driver was lost: %s", told ? info.reason : haul_wc_status_str(c->end_status));
}

void take_completion(struct connection *c, const haul_wc *wc) {
  uint32_t number = (uint32_t)wc->wr_id;
  if (wc->status != HAUL_WC_SUCCESS) {
    c->end_status = c->down ? c->end_status : wc->status;
    c->down = true;
    return;
  }
  switch (wc->wr_id >> 32) {
  case WORK_RECEIVE:
    if (!is_over(c)) {
      take_message(c, number, wc->byte_len);
    }
    break;
  case WORK_DATA:
    c->free_slots[c->free_slot_count++] = (uint16_t)number;
    c->in_flight--;
    break;
  default:
    c->free_controls |= 1u << number;
  }
}

/* With the lock: whatever there is to do. */
void advance(struct connection *c, bool idle) {
  if (c->owe_fin_ack && c->free_controls != 0 && !c->down) {
    c->owe_fin_ack = false;
    post_control(c, KIND_FIN_ACK, 0, NULL, 0);
  }
  deliver(c);
  fill(c);
  if (c->stream != NULL) {
    stream_finish(c);
    return;
  }
  grant(c, idle);
  bool written = c->writes.first == NULL && c->open_len == 0 && !c->filling;
  if (c->closing && written && !c->fin_sent && c->free_controls != 0 && !c->down && !is_over(c)) {
    c->fin_sent = true;
    post_control(c, KIND_FIN, c->tx_bytes, NULL, 0);
  }
}
