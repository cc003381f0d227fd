/** Assignors: rules by which the leader of a group assigns partitions to its members. */
package io.paceline.client.assignors;
