/**
 * Write to, read from and administrate a Paceline cluster.
 *
 * <p>Begin with {@link io.paceline.client.PacelineClient}; it makes producers, consumers and the admin.
 */
package io.paceline.client;
