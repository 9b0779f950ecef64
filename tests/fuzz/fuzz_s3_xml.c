/* fuzz_s3_xml.c: any bytes as the answer of an S3 server, or as a credentials text, to every reader of
 * such. Beyond memory errors it checks that a reader that says yes has filled its results. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "objstore/s3_cred.h"
#include "objstore/s3_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int row(void *arg, const struct obj_entry *e)
{
    unsigned *n = arg;

    assert(e->key && e->key[0]);
    return ++*n > 1000 ? -ECANCELED : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data;
    struct s3_page page;
    struct s3_error e;
    char etag[OBJ_ETAG_MAX];
    char out[64];
    char *id = NULL;
    unsigned n = 0;

    if (s3_xml_list(p, size, &page, row, &n) == 0) {
        assert(!page.truncated || page.token.len || page.key_marker.len);
        s3_page_free(&page);
    }
    s3_xml_error(p, size, &e);
    assert(memchr(e.code, 0, sizeof(e.code)) && memchr(e.message, 0, sizeof(e.message)));
    if (s3_xml_upload_id(p, size, &id) == 0) {
        assert(id && id[0]);
        free(id);
    }
    s3_xml_complete(p, size, etag, &e);
    assert(memchr(etag, 0, sizeof(etag)));
    s3_xml_deleted(p, size, &n, &e);

    char *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    s3_json_string(text, "AccessKeyId", out, sizeof(out));
    s3_ini_get(text, "default", "aws_access_key_id", out, sizeof(out));
    s3_iso_time_ms(text);
    s3_decode(text, true);
    free(text);
    return 0;
}
