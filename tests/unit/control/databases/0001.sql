BEGIN TRANSACTION;
CREATE TABLE idempotency (
	tenant VARCHAR(39) NOT NULL, 
	"key" VARCHAR(128) NOT NULL, 
	digest BLOB NOT NULL, 
	sandbox VARCHAR(23) NOT NULL, 
	created_us BIGINT NOT NULL, 
	PRIMARY KEY (tenant, "key")
);
INSERT INTO "idempotency" VALUES('default','once',X'0000000000000000000000000000000000000000000000000000000000000000','sb-aaaaaaaaaaaaaaaaaaaa',1700000000000000);
CREATE TABLE keys (
	id VARCHAR(16) NOT NULL, 
	tenant VARCHAR(39) NOT NULL, 
	scope VARCHAR(16) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	digest BLOB NOT NULL, 
	created_us BIGINT NOT NULL, 
	revoked_us BIGINT, 
	PRIMARY KEY (id)
);
INSERT INTO "keys" VALUES('abcdefghijkl','default','admin','first start',X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F',1700000000000000,NULL);
CREATE TABLE sandboxes (
	id VARCHAR(23) NOT NULL, 
	tenant VARCHAR(39) NOT NULL, 
	spec JSON NOT NULL, 
	template VARCHAR(63) NOT NULL, 
	metadata JSON NOT NULL, 
	desired VARCHAR(16) NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	reason VARCHAR, 
	isolation VARCHAR(64) NOT NULL, 
	generation BIGINT NOT NULL, 
	revision BIGINT NOT NULL, 
	created_us BIGINT NOT NULL, 
	expires_us BIGINT NOT NULL, 
	ended_us BIGINT, 
	PRIMARY KEY (id)
);
INSERT INTO "sandboxes" VALUES('sb-aaaaaaaaaaaaaaaaaaaa','default','{"template": "base", "cpus": 1, "memory_mib": 256, "disk_mib": 2048, "env": {"A": "b"}, "metadata": {"who": "me"}, "ttl_seconds": 3600}','base','{"who": "me"}','running','running',NULL,'emulated (development only)',1,3,1700000000000000,1700003600000000,NULL);
INSERT INTO "sandboxes" VALUES('sb-bbbbbbbbbbbbbbbbbbbb','acme','{"template": "base", "cpus": 1, "memory_mib": 512, "disk_mib": 2048, "env": {}, "metadata": {}, "ttl_seconds": 3600}','base','{}','gone','gone','deleted by request','emulated (development only)',1,5,1700000000000001,1700003600000001,1700000100000000);
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
CREATE INDEX sandboxes_by_tenant ON sandboxes (tenant, created_us, id);
CREATE INDEX sandboxes_by_end ON sandboxes (ended_us);
CREATE INDEX idempotency_by_age ON idempotency (created_us);
COMMIT;
