/* s3_xml.h: the XML that S3 speaks: a small pull reader over bytes in memory, the answers read with
 * it, and the two request bodies.
 *
 * The input is untrusted. No DTD, no external anything; depth and text are bounded. Nothing blocks
 * or keeps state; any thread. Readers return 0, -EBADMSG for a malformed or wrong document, or
 * -ENOMEM.
 */
#ifndef SLUICE_OBJSTORE_S3_XML_H
#define SLUICE_OBJSTORE_S3_XML_H

#include <stdint.h>
#include "objstore/objstore.h"
#include "objstore/sbuf.h"

enum xml_event {
    XML_OPEN,  /* name is set */
    XML_CLOSE, /* name is set; text holds what stood in the element since its last child */
    XML_END,   /* the root element is closed */
    XML_BAD
};

enum { XML_DEPTH_MAX = 16, XML_NAME_MAX = 64, XML_TEXT_MAX = 16384 };

struct xml {
    const char *p, *end;
    unsigned depth; /* elements open, the one just opened included */
    bool empty;     /* a <name/> was opened: its close follows */
    bool closing;   /* the last event was a close: depth is lowered at the next step */
    char stack[XML_DEPTH_MAX][XML_NAME_MAX];
    char name[XML_NAME_MAX]; /* without a name-space prefix */
    struct sbuf text;        /* decoded */
};

void xml_init(struct xml *x, const char *p, size_t len);
enum xml_event xml_next(struct xml *x);
void xml_free(struct xml *x);

/* An <Error> document. Missing parts stay "". -EBADMSG: it is something else. */
struct s3_error {
    char code[64], message[160], request_id[80], region[64];
};
int s3_xml_error(const char *p, size_t len, struct s3_error *ret);

/* A ListObjectsV2 or ListMultipartUploads answer. Keys come decoded and whole (bucket keys); a
 * non-zero return of `each` stops and is returned. */
struct s3_page {
    bool truncated;
    struct sbuf token;         /* NextContinuationToken */
    struct sbuf key_marker;    /* NextKeyMarker, decoded */
    struct sbuf upload_marker; /* NextUploadIdMarker */
};
int s3_xml_list(const char *p, size_t len, struct s3_page *ret,
                int (*each)(void *arg, const struct obj_entry *e), void *arg);
void s3_page_free(struct s3_page *page);

/* InitiateMultipartUploadResult: the upload id, malloc'ed. */
int s3_xml_upload_id(const char *p, size_t len, char **ret);

/* CompleteMultipartUploadResult: its ETag. An <Error> document in its place (S3 sends it behind a
 * status of 200): -EIO with *error filled. */
int s3_xml_complete(const char *p, size_t len, char etag[static OBJ_ETAG_MAX],
                    struct s3_error *error);

/* DeleteResult: how many keys were not deleted, and the first reason. NoSuchKey counts as deleted. */
int s3_xml_deleted(const char *p, size_t len, unsigned *failed, struct s3_error *first);

/* Text for an element, escaped. False: a byte that XML 1.0 cannot carry. */
bool s3_xml_escape(struct sbuf *b, const char *s);

/* ISO 8601 in UTC ("2024-01-31T23:59:59.123Z") to milliseconds since 1970; 0 if it is not that. */
int64_t s3_iso_time_ms(const char *s);

/* Decodes %XX in place, and '+' as a space if asked. False: malformed, or a NUL inside. */
bool s3_decode(char *s, bool plus);

#endif
