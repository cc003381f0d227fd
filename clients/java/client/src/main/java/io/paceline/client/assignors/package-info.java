/** Rules that divide the partitions of topics among the members of a group. */
package io.paceline.client.assignors;
