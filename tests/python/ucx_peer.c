// A UCX program that is not HMC: puts into memory of another process and gets from it, as told line by line on its input.
//   connect WORKER_ADDRESS        an endpoint to that worker (hexadecimal); the next ones get the numbers 0, 1, ...
//   put ENDPOINT RKEY ADDRESS BYTES_IN_HEXADECIMAL
//   get ENDPOINT RKEY ADDRESS LENGTH
// Usage: ucx_peer [seconds that an operation may take]
// Answers each with a line: "ok", the bytes, or "error" and UCX's word for it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoints[16];
static ucs_status_t failures[16];
static int count;
static double patience = 30;  // seconds

static unsigned char* bytes_of(const char* text, size_t* length) {
  *length = strlen(text) / 2;
  unsigned char* bytes = calloc(1, *length + 65536);  // UCX reads addresses and keys without knowing their length
  for (size_t i = 0; i < *length; ++i) {
    const char pair[3] = {text[2 * i], text[2 * i + 1], 0};
    bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
  }
  return bytes;
}

static void failed(void* number, ucp_ep_h endpoint, ucs_status_t status) {
  (void)endpoint;
  failures[(intptr_t)number] = status;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static ucs_status_t wait_for(ucs_status_ptr_t request, int endpoint) {
  if (!UCS_PTR_IS_PTR(request)) return UCS_PTR_STATUS(request);
  const double start = now();
  ucs_status_t status = UCS_INPROGRESS;
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS && now() - start < patience) ucp_worker_progress(worker);
  ucp_request_free(request);
  return status == UCS_INPROGRESS ? UCS_ERR_TIMED_OUT : status != UCS_OK ? status : failures[endpoint];
}

static ucs_status_t move(int put, int endpoint, const char* key_text, uint64_t address, unsigned char* data, size_t length) {
  if (failures[endpoint] != UCS_OK) return failures[endpoint];
  size_t key_length;
  unsigned char* key_bytes = bytes_of(key_text, &key_length);
  ucp_rkey_h key;
  ucs_status_t status = ucp_ep_rkey_unpack(endpoints[endpoint], key_bytes, &key);
  free(key_bytes);
  if (status != UCS_OK) return status;
  const ucp_request_param_t plain = {0};
  ucs_status_ptr_t moving = put ? ucp_put_nbx(endpoints[endpoint], data, length, address, key, &plain)
                                : ucp_get_nbx(endpoints[endpoint], data, length, address, key, &plain);
  status = wait_for(moving, endpoint);
  if (status == UCS_OK) status = wait_for(ucp_ep_flush_nbx(endpoints[endpoint], &plain), endpoint);
  ucp_rkey_destroy(key);
  return status;
}

static ucs_status_t connect_to(const char* text) {
  size_t length;
  unsigned char* address = bytes_of(text, &length);
  memset(address + length, 0xFF, 4096);
  ucp_ep_params_t params = {0};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = (const ucp_address_t*)address;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = failed;
  params.err_handler.arg = (void*)(intptr_t)count;
  const ucs_status_t status = ucp_ep_create(worker, &params, &endpoints[count]);
  if (status == UCS_OK) ++count;
  free(address);
  return status;
}

int main(void) {
  ucp_params_t params = {0};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA;
  ucp_worker_params_t worker_params = {0};
  if (ucp_init(&params, NULL, &context) != UCS_OK || ucp_worker_create(context, &worker_params, &worker) != UCS_OK) return 1;
  char* line = NULL;
  size_t room = 0;
  while (getline(&line, &room, stdin) > 0) {
    char* words[5] = {0};
    int found = 0;
    for (char* word = strtok(line, " \n"); word != NULL && found < 5; word = strtok(NULL, " \n")) words[found++] = word;
    ucs_status_t status = UCS_ERR_INVALID_PARAM;
    unsigned char* data = NULL;
    size_t length = 0;
    const int get = found == 5 && strcmp(words[0], "get") == 0;
    if (found == 2 && strcmp(words[0], "connect") == 0) {
      status = connect_to(words[1]);
    } else if (found == 2 && strcmp(words[0], "patience") == 0) {
      patience = atof(words[1]);
      status = UCS_OK;
    } else if (found == 5) {
      data = get ? malloc(length = strtoull(words[4], NULL, 0)) : bytes_of(words[4], &length);
      status = move(!get, atoi(words[1]), words[2], strtoull(words[3], NULL, 0), data, length);
    }
    if (status != UCS_OK) {
      printf("error %s\n", ucs_status_string(status));
    } else if (get) {
      for (size_t i = 0; i < length; ++i) printf("%02x", data[i]);
      printf("\n");
    } else {
      printf("ok\n");
    }
    fflush(stdout);
    free(data);
  }
  return 0;
}
