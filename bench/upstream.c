// A model server that costs nothing: an epoll loop that answers Chat Completions, and Responses to
// a request whose path says so, from memory.
//
//   upstream PORT
//
// The model's name says what it does: "mock-n200-us0" streams 200 chunks as fast as the socket
// takes them, "mock-n100-us20000" streams one every 20 ms. Without "stream":true it answers one
// JSON body of about 1.5 KB. The text of chunks varies, since some peers give up on repeats.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { IN = 1 << 16, OUT = 1 << 18, CHUNK = 600, MAX_EVENTS = 512 };

typedef struct Peer {
  int fd, filled, waiting_out, paced_at;  // paced_at: place in the paced list, -1 if not there
  int left, number;                       // chunks still to send, chunks sent
  int responses;                          // the number of the answer; 0 in Chat
  int64_t step, due;                      // microseconds
  size_t out_len, out_off;
  size_t in_size;
  char *in, out[OUT];
} Peer;

static int epoll_fd, paced_count, answered;
static Peer *paced[1 << 16];
static char unary[4096], unary_responses[4096];
static const char *STREAM_HEAD =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char *LISTING =
    "{\"object\":\"list\",\"data\":[{\"id\":\"mock-n200-us0\",\"object\":\"model\",\"created\":1,"
    "\"owned_by\":\"mock\"}]}";

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

// One server-sent event in one HTTP chunk.
static int event(char *out, const char *delta, const char *finish) {
  char data[CHUNK];
  int n = snprintf(data, sizeof data,
                   "data: {\"id\":\"chatcmpl-CbQ0abcdefghijklmnopqrstuvwx\","
                   "\"object\":\"chat.completion.chunk\",\"created\":1763640000,"
                   "\"model\":\"mock-model-2025-11-20\",\"service_tier\":\"default\","
                   "\"system_fingerprint\":\"fp_0123456789\",\"choices\":[{\"index\":0,"
                   "\"delta\":%s,\"logprobs\":null,\"finish_reason\":%s}],"
                   "\"obfuscation\":\"aB3dE5\"}\n\n",
                   delta, finish);
  return sprintf(out, "%x\r\n%s\r\n", n, data);
}

static void number(char *text, int serial) {  // ids are unique, since some peers store answers by them
  char digits[9];
  snprintf(digits, sizeof digits, "%08d", serial);
  for (char *at = text; (at = strstr(at, "_00000000")); at += 9) memcpy(at + 1, digits, 8);
}

// One event of Responses in one HTTP chunk.
static int named(char *out, int serial, const char *type, int i, const char *rest) {
  char data[8192];
  int n = snprintf(data, sizeof data,
                   "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d,%s}\n\n", type, type,
                   i, rest);
  number(data, serial);
  return sprintf(out, "%x\r\n%s\r\n", n, data);
}

#define PLACE "\"item_id\":\"msg_00000000\",\"output_index\":0,\"content_index\":0,"
#define PART "{\"type\":\"output_text\",\"text\":\"%s\",\"annotations\":[],\"logprobs\":[]}"
#define ITEM                                                                                \
  "{\"type\":\"message\",\"id\":\"msg_00000000\",\"role\":\"assistant\",\"status\":\"%s\",\"content\":[%s]}"
#define RESPONSE                                                                               \
  "{\"id\":\"resp_00000000\",\"object\":\"response\",\"created_at\":1763640000,\"model\":\"mock\","        \
  "\"status\":\"%s\",\"output\":[%s],\"parallel_tool_calls\":true,\"tool_choice\":\"auto\","         \
  "\"tools\":[],\"error\":null,\"incomplete_details\":null,\"instructions\":null,\"metadata\":{},"    \
  "\"temperature\":1.0,\"top_p\":1.0,\"usage\":{\"input_tokens\":24,\"input_tokens_details\":{"       \
  "\"cached_tokens\":0},\"output_tokens\":150,\"output_tokens_details\":{\"reasoning_tokens\":0},"   \
  "\"total_tokens\":174}}"

static const char *item(const char *status, const char *text) {
  static char out[4096], part[2048];
  if (text) snprintf(part, sizeof part, PART, text);
  snprintf(out, sizeof out, ITEM, status, text ? part : "");
  return out;
}

static void spell(char *text, int i) {
  sprintf(text, " %c%c%c%cv", 'a' + i % 26, 'a' + i / 26 % 26, 'a' + i / 676 % 26, i % 3 ? 'x' : 'y');
}

static int responses_first(char *out, int serial) {
  char rest[4096], part[256];
  snprintf(rest, sizeof rest, "\"response\":" RESPONSE, "in_progress", "");
  int n = named(out, serial, "response.created", 0, rest);
  n += named(out + n, serial, "response.in_progress", 1, rest);
  snprintf(rest, sizeof rest, "\"output_index\":0,\"item\":%s", item("in_progress", NULL));
  n += named(out + n, serial, "response.output_item.added", 2, rest);
  snprintf(part, sizeof part, PART, "");
  snprintf(rest, sizeof rest, PLACE "\"part\":%s", part);
  return n + named(out + n, serial, "response.content_part.added", 3, rest);
}

static int responses_last(char *out, int i, int serial) {
  char text[2048] = "", part[4096], rest[8192];
  for (int k = 0; k < i; k++) spell(text + strlen(text), k);
  snprintf(rest, sizeof rest, PLACE "\"text\":\"%s\",\"logprobs\":[]", text);
  int n = named(out, serial, "response.output_text.done", i + 4, rest);
  snprintf(part, sizeof part, PART, text);
  snprintf(rest, sizeof rest, PLACE "\"part\":%s", part);
  n += named(out + n, serial, "response.content_part.done", i + 5, rest);
  snprintf(rest, sizeof rest, "\"output_index\":0,\"item\":%s", item("completed", text));
  n += named(out + n, serial, "response.output_item.done", i + 6, rest);
  snprintf(rest, sizeof rest, "\"response\":" RESPONSE, "completed", item("completed", text));
  n += named(out + n, serial, "response.completed", i + 7, rest);
  return n + sprintf(out + n, "0\r\n\r\n");
}

static int word(char *out, int i, int responses) {
  char text[16], delta[256];
  spell(text, i);
  if (responses) {
    snprintf(delta, sizeof delta, PLACE "\"delta\":\"%s\",\"logprobs\":[]", text);
    return named(out, responses, "response.output_text.delta", i + 4, delta);
  }
  snprintf(delta, sizeof delta, "{\"content\":\"%s\"}", text);
  return event(out, delta, "null");
}

static int first(char *out, int responses) {
  if (responses) return responses_first(out, responses);
  return event(out, "{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null}", "null");
}

static int last(char *out, int i, int responses) {
  if (responses) return responses_last(out, i, responses);
  int n = event(out, "{}", "\"stop\"");
  return n + sprintf(out + n, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
}

static void want_out(Peer *p, int on) {
  if (p->waiting_out == on) return;
  p->waiting_out = on;
  struct epoll_event e = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.ptr = p};
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, p->fd, &e);
}

static int push(Peer *p) {  // -1: the peer is gone, 0: more to send later, 1: all sent
  while (p->out_off < p->out_len) {
    ssize_t n = send(p->fd, p->out + p->out_off, p->out_len - p->out_off, MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) return want_out(p, 1), 0;
    if (n < 0) return -1;
    p->out_off += n;
  }
  p->out_len = p->out_off = 0;
  want_out(p, 0);
  return 1;
}

static void unpace(Peer *p) {
  if (p->paced_at < 0) return;
  paced[p->paced_at] = paced[--paced_count];
  paced[p->paced_at]->paced_at = p->paced_at;
  p->paced_at = -1;
}

static void drop(Peer *p) {
  unpace(p);
  close(p->fd);
  free(p->in);
  free(p);
}

static void add(Peer *p, const char *text) {
  size_t n = strlen(text);
  memcpy(p->out + p->out_len, text, n);
  p->out_len += n;
}

static void answer(Peer *p, int get, const char *body) {
  char head[128];
  if (get || !strstr(body, "\"stream\":true")) {
    char whole[sizeof unary_responses];
    number(strcpy(whole, unary_responses), p->responses);
    const char *text = get ? LISTING : p->responses ? whole : unary;
    sprintf(head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
            strlen(text));
    add(p, head), add(p, text);
    return;
  }
  int chunks = 200, step = 0;
  const char *shape = strstr(body, "mock-n");
  if (shape) sscanf(shape, "mock-n%d-us%d", &chunks, &step);
  add(p, STREAM_HEAD);
  p->out_len += first(p->out + p->out_len, p->responses);
  p->left = chunks - 1, p->number = 0;
  if (step == 0) {
    for (; p->left > 1; p->left--) p->out_len += word(p->out + p->out_len, p->number++, p->responses);
    p->out_len += last(p->out + p->out_len, p->number, p->responses);
    p->left = 0;
    return;
  }
  p->step = step, p->due = now() + step;
  p->paced_at = paced_count;
  paced[paced_count++] = p;
}

static int serve(Peer *p) {  // answers the requests that are whole; -1: the peer is gone
  while (!p->out_len && p->paced_at < 0) {
    p->in[p->filled] = 0;
    char *end = strstr(p->in, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(p->in, "content-length:");
    int head = end - p->in + 4, body = length && length < end ? atoi(length + 15) : 0;
    if (p->filled < head + body) return 0;
    char kept = p->in[head + body];
    p->in[head + body] = 0;
    p->responses = memcmp(p->in, "POST /v1/responses", 18) ? 0 : ++answered;
    answer(p, !memcmp(p->in, "GET ", 4), p->in + head);
    p->in[head + body] = kept;
    p->filled -= head + body;
    memmove(p->in, p->in + head + body, p->filled);
    if (push(p) < 0) return -1;
  }
  return 0;
}

static int pace(Peer *p, int64_t t) {  // -1: the peer is gone, 1: the stream is over
  while (p->due <= t) {
    char text[1 << 15];
    int over = p->left <= 1;
    int n = over ? last(text, p->number, p->responses) : word(text, p->number++, p->responses);
    if (send(p->fd, text, n, MSG_NOSIGNAL) < 0 && errno != EAGAIN) return -1;
    if (over) return 1;
    p->left--, p->due += p->step;
  }
  return 0;
}

static void pace_all(void) {
  int64_t t = now();
  for (int i = 0; i < paced_count;) {
    Peer *p = paced[i];
    int state = pace(p, t);
    if (state) unpace(p);
    if (state < 0 || (state > 0 && serve(p) < 0)) drop(p);
    if (!state) i++;
  }
}

static int wait_ms(void) {
  if (!paced_count) return -1;
  int64_t next = INT64_MAX, t = now();
  for (int i = 0; i < paced_count; i++)
    if (paced[i]->due < next) next = paced[i]->due;
  return next <= t ? 0 : (next - t) / 1000 + 1;
}

static void accept_all(int listener) {
  int fd, one = 1;
  while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    Peer *p = malloc(sizeof *p);
    p->in = malloc(p->in_size = IN);
    p->fd = fd, p->filled = p->waiting_out = 0, p->paced_at = -1;
    p->out_len = p->out_off = 0;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
  }
}

static void on_event(Peer *p, uint32_t what) {
  if (what & EPOLLOUT) {
    int state = push(p);
    if (state < 0 || (state > 0 && serve(p) < 0)) return drop(p);
  }
  if (what & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
    if (p->in_size - p->filled < IN / 2) p->in = realloc(p->in, p->in_size *= 2);
    ssize_t n = recv(p->fd, p->in + p->filled, p->in_size - 1 - p->filled, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return drop(p);
    if (n > 0) p->filled += n;
    if (n > 0 && serve(p) < 0) drop(p);
  }
}

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);
  char text[1300] = "";
  for (int i = 0; i < 150; i++) strcat(text, i % 10 == 9 ? " caf\\u00e9" : " token");
  snprintf(unary, sizeof unary,
           "{\"id\":\"chatcmpl-CbQ0abcdefghijklmnopqrstuvwx\",\"object\":\"chat.completion\","
           "\"created\":1763640000,\"model\":\"mock-model-2025-11-20\",\"choices\":[{\"index\":0,"
           "\"message\":{\"role\":\"assistant\",\"content\":\"%s\",\"refusal\":null,"
           "\"annotations\":[]},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{"
           "\"prompt_tokens\":24,\"completion_tokens\":150,\"total_tokens\":174,"
           "\"prompt_tokens_details\":{\"cached_tokens\":0,\"audio_tokens\":0},"
           "\"completion_tokens_details\":{\"reasoning_tokens\":0,\"audio_tokens\":0}},"
           "\"service_tier\":\"default\",\"system_fingerprint\":\"fp_0123456789\"}",
           text);
  snprintf(unary_responses, sizeof unary_responses, RESPONSE, "completed", item("completed", text));
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons(argc > 1 ? atoi(argv[1]) : 9000),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (void *)&address, sizeof address)) return perror("bind"), 1;
  listen(listener, 4096);
  epoll_fd = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN}, events[MAX_EVENTS];
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
  for (;;) {
    int n = epoll_wait(epoll_fd, events, MAX_EVENTS, wait_ms());
    for (int i = 0; i < n; i++)
      if (events[i].data.ptr) on_event(events[i].data.ptr, events[i].events);
      else accept_all(listener);
    pace_all();
  }
}
